"""Write the status machine's diagram into ARCHITECTURE.md, from the one map that the code obeys.

`python scripts/status_diagram.py` writes it; `--check` only says whether it is current (exit code 1 where it is not).
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rubato.wire.status import ALLOWED, FINAL, Status  # noqa: E402 - the checkout comes before an installed wheel

PAGE = ROOT / "ARCHITECTURE.md"
BEGIN = "<!-- status-diagram: written by scripts/status_diagram.py -->"
END = "<!-- status-diagram: end -->"


def draw() -> str:
    """The map as a Mermaid state diagram, in the order of the enum."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Status.QUEUED.value}"]
    for source in Status:
        lines += [f"    {source.value} --> {target.value}" for target in Status if target in ALLOWED[source]]
    lines += [f"    {status.value} --> [*]" for status in Status if status in FINAL]
    return "\n".join([*lines, "```"])


def insert(text: str) -> str:
    """The page with the present diagram between the marks."""
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise SystemExit(f"{PAGE.name} must contain the lines\n{BEGIN}\n{END}")
    return f"{before}{BEGIN}\n{draw()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write, or with `--check` compare."""
    present = PAGE.read_text()
    wanted = insert(present)
    if "--check" in arguments:
        if present != wanted:
            print(f"{PAGE.name}: the status diagram is stale; run: python scripts/status_diagram.py", file=sys.stderr)
        return int(present != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
