"""Write what `rubato plan` says of a measured profile into docs/how-to/plan.md.

`python scripts/plan_example.py` writes it; `--check` only says whether it is current (exit code 1 where it is not).
The profile is of `rubato profile --recipe char-lm --set reproducible=false --output benchmarks/measured/profile.json`.
"""

from __future__ import annotations

import subprocess
import sys

from generated import ROOT, Part

PART = Part(ROOT / "docs" / "how-to" / "plan.md", "example", "plan_example.py")
PROFILE = ROOT / "benchmarks" / "measured" / "profile.json"
ASKED = "plan --recipe char-lm --set reproducible=false --gbit 0.1 --latency-ms 1"


def draw() -> str:
    """The command and its answer."""
    command = [sys.executable, "-m", "rubato.cli", *ASKED.split(), "--profile", str(PROFILE)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return "\n".join(["```console", f"$ rubato {ASKED}", *(line.rstrip() for line in told.splitlines()), "```"])


if __name__ == "__main__":
    raise SystemExit(PART.keep(draw(), sys.argv[1:]))
