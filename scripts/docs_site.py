"""Build the documents as a site: `python scripts/docs_site.py [FOLDER]`, into build/docs/site.

Its pages can be opened as files; the search needs a server (`python -m http.server -d build/docs/site`). The
documents stay where they are. Here they are laid out for the generator: the pages beside docs/ come in, README.md as
the start page, the REST reference is written from openapi.json, and links follow. The build is strict, and what came
out is checked again: no link leads nowhere, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import rest_page
from generated import ROOT

OUT = ROOT / "build" / "docs"
CONFIG = ROOT / "docs" / "site.toml"
OUTSIDE = ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
REST = Path("reference/rest.md")
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)(#[^)\s]*)?\)")


def lay_out(out: Path) -> None:
    """The tree that the generator reads."""
    shutil.rmtree(out, ignore_errors=True)
    docs = out / "docs"
    shutil.copytree(ROOT / "docs", docs, ignore=shutil.ignore_patterns("site.toml"))
    moved = {ROOT / name: docs / name for name in OUTSIDE} | {ROOT / "README.md": docs / "index.md"}
    for page, target in moved.items():
        shutil.copy(page, target)
    (docs / REST).write_text(rest_page.render(ROOT / "docs" / "reference" / "openapi.json"))
    shutil.copy(ROOT / "web" / "public" / "favicon.svg", docs / "images" / "favicon.svg")
    targets = {page: docs / page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*") if page.is_file()}
    targets |= moved
    rest = docs / REST
    for page, target in targets.items():
        if target.suffix == ".md":
            target.write_text(_with_links(target.read_text(), page, target, targets, rest))
    shutil.copy(CONFIG, out / "zensical.toml")


def _with_links(text: str, page: Path, target: Path, targets: dict[Path, Path], rest: Path) -> str:
    """The text with links that hold where the page is now; what the site has not is named without a link."""

    def follow(match: re.Match[str]) -> str:
        begin, address, anchor = match.group(1), match.group(2), match.group(3) or ""
        if "://" in address or address.startswith("mailto:"):
            return match.group()
        leads_to = (page.parent / address).resolve()
        if leads_to.name == "openapi.json":
            new = rest
        elif (found := targets.get(leads_to)) is not None:
            new = found
        else:
            return begin.lstrip("![").removesuffix("](")
        return f"{begin}{_relative(new, target.parent)}{anchor})"

    return LINK.sub(follow, text)


def _relative(path: Path, folder: Path) -> str:
    """From the folder to the path, with `..` where needed."""
    common = next(parent for parent in (folder, *folder.parents) if path.is_relative_to(parent))
    return "/".join([".."] * len(folder.relative_to(common).parts) + list(path.relative_to(common).parts))


def build(out: Path) -> None:
    """Run the generator; it fails at a link that leads nowhere."""
    zensical = Path(sys.executable).with_name("zensical")
    subprocess.run([zensical, "build", "--strict", "--clean"], cwd=out, check=True)


class _Page(HTMLParser):
    """Where a page leads, what it loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.leads_to: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if name := given.get("id"):
            self.anchors.add(name)
        if tag == "a" and (address := given.get("href")):
            self.leads_to.append(address)
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given.get("href") or "")
        elif tag in ("script", "img", "iframe", "source") and (address := given.get("src")):
            self.loads.append(address)


def complaints(site: Path) -> Iterator[str]:
    """Links and files that are missing in the built site, and what it loads from elsewhere."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site)
        for address in page.loads + page.leads_to:
            if re.match(r"(https?:)?//", address):
                if address in page.loads:
                    yield f"{where} loads {address}"
                continue
            if address.startswith(("mailto:", "data:", "javascript:")):
                continue
            file, anchor = urldefrag(unquote(address))
            to = (path.parent / file).resolve() if file else path
            to = to / "index.html" if to.is_dir() else to
            if not to.exists() and where.name != "404.html":
                yield f"{where} leads to {address}, which is not there"
            elif anchor and to in pages and anchor not in pages[to].anchors:
                yield f"{where} leads to {address}, which has no such heading"


def main() -> int:
    """Lay out, build, check; 1 where the site has a fault. The first argument is another folder than build/docs."""
    out = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else OUT
    lay_out(out)
    build(out)
    found = list(complaints(out / "site"))
    print("\n".join(found), file=sys.stderr)
    print(f"{len(list(out.rglob('site/**/*.html')))} pages in {out / 'site'}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
