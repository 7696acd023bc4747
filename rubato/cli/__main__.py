"""`python -m rubato.cli`: the `rubato` command where the script is not on the path."""

from rubato.cli import main

main()
