"""`python -m rubato.cli.keeper`: started by `rubato up`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rubato.cli.keeper.daemon import keep, log
from rubato.errors import KeeperError
from rubato.home import Home


def main() -> int:
    """Be a keeper; 1 where that is not possible."""
    parser = argparse.ArgumentParser(prog="python -m rubato.cli.keeper", description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    options = parser.parse_args()
    try:
        keep(Home(options.home.absolute()), port=options.port, slots=options.slots)
    except KeeperError as error:
        log(str(error))
        return 1
    return 0


sys.exit(main())
