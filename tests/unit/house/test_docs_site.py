"""The site of the documents builds without a broken link, and loads nothing from elsewhere."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_site_builds_strictly_and_needs_no_network(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/docs_site.py", str(tmp_path / "docs")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    site = tmp_path / "docs" / "site"
    assert "POST /api/v1/jobs/{reference}/scale" in (site / "reference" / "rest.html").read_text()


def test_every_page_has_its_place_in_the_navigation() -> None:
    docs = ROOT / "docs"
    named = (docs / "site.toml").read_text()
    pages = [page.relative_to(docs) for page in docs.rglob("*.md") if page.parent.name != "adr"]
    assert [str(page) for page in pages if f'"{page}"' not in named] == []


def test_a_dead_link_a_lost_heading_and_a_foreign_script_are_found(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    from docs_site import complaints

    (tmp_path / "index.html").write_text(
        '<script src="https://elsewhere.example/x.js"></script><h1 id="here"></h1>'
        '<a href="#here"></a><a href="gone.html"></a><a href="index.html#gone"></a>'
    )
    assert list(complaints(tmp_path)) == [
        "index.html loads https://elsewhere.example/x.js",
        "index.html leads to gone.html, which is not there",
        "index.html leads to index.html#gone, which has no such heading",
    ]
