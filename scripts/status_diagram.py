"""Write the status machine's diagram into ARCHITECTURE.md, from the one map that the code obeys.

`python scripts/status_diagram.py` writes it; `--check` only says whether it is current (exit code 1 where it is not).
"""

from __future__ import annotations

import sys

from generated import ROOT, Part

from rubato.wire.status import ALLOWED, FINAL, Status

PART = Part(ROOT / "ARCHITECTURE.md", "status-diagram", "status_diagram.py")


def draw() -> str:
    """The map as a Mermaid state diagram, in the order of the enum."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Status.QUEUED.value}"]
    for source in Status:
        lines += [f"    {source.value} --> {target.value}" for target in Status if target in ALLOWED[source]]
    lines += [f"    {status.value} --> [*]" for status in Status if status in FINAL]
    return "\n".join([*lines, "```"])


if __name__ == "__main__":
    raise SystemExit(PART.keep(draw(), sys.argv[1:]))
