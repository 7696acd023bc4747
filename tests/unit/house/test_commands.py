"""What the documents tell one to type is there: each command with its flags, each target of make. Parsed, not run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.core
import typer.main

from rubato.cli.app import app

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted(
    path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
BLOCK = re.compile(r"^ *```(?:sh|bash|console)\n(.*?)^ *```", flags=re.MULTILINE | re.DOTALL)
ENDS = re.compile(r"^(\||\|\||&|&&|;|\d?>>?|<)")
"""Words of the shell behind which another command, or a file, begins."""
COMMANDS: Any = typer.main.get_command(app)
VARIABLE = re.compile(r"\$\{?\w+\}?")


def commands_in(text: str) -> list[list[str]]:
    """The words of each line of its shell blocks, without what the shell adds."""
    found = []
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(line.strip().removeprefix("$ "), comments=True)
            except ValueError:  # a quotation that goes on
                continue
            ends = next((at for at, word in enumerate(words) if ENDS.match(word)), len(words))
            found.append([VARIABLE.sub("1", word) for word in words[:ends]])
    return [words for words in found if words]


def parse(words: list[str]) -> None:
    """Raises what the command line does where there is no such command or flag."""
    command = COMMANDS
    while isinstance(command, typer.core.TyperGroup):
        name = words.pop(0)
        assert name in command.commands, f"no command {name}"
        command = command.commands[name]
    command.make_context(str(command.name), words)


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS])
def test_what_a_document_tells_to_type_is_there(document: Path) -> None:
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for words in commands_in(document.read_text()):
        match words:
            case ["rubato", *rest] if rest:
                parse(rest)
            case ["make", *rest]:
                asked = [word for word in rest if "=" not in word and not word.startswith("-")]
                assert set(asked) <= set(targets), f"no target: {asked}"


@pytest.mark.parametrize("line", ["rubato scael 3", "rubato scale", "rubato scale job 3 --wiat"])
def test_what_is_not_there_is_seen(line: str) -> None:
    with pytest.raises(Exception, match=r"no command scael|Missing parameter|No such option"):
        parse(commands_in(f"```sh\n{line}  # so\n```\n")[0][1:])


def test_the_readme_shows_the_main_ones() -> None:
    said = {words[1] for words in commands_in((ROOT / "README.md").read_text()) if words[0] == "rubato"}
    assert {"up", "submit", "scale", "worker", "pause", "resume", "down"} <= said
