"""How long Rubato stands still at a change of membership: `python -m benchmarks`, of one peer and these figures only.

python benchmarks/pause.py [--rounds 3] [any other flag of `python -m benchmarks`]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it finds its own folder only

from benchmarks.__main__ import main

FIGURES = "up_1_2,up_2_4,former_1_2,former_2_4,leave_4_3,kill,redone,equal"

if __name__ == "__main__":
    sys.exit(main(["--peers", "rubato", "--figures", FIGURES, *sys.argv[1:]]))
