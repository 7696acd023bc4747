"""Programs that `rubato init` copies into a new folder: whole files to begin with, which use public names only."""
