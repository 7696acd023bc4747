"""The `rubato` command. Never imports torch or ray; each command loads what it needs, so that `--help` is quick."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `rubato` script."""
    from rubato.cli.app import run

    sys.exit(run(sys.argv[1:]))
