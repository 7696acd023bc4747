from __future__ import annotations

from datetime import datetime

import pytest

from rubato.cli.live import Picture, _screen
from rubato.cli.output import put_table, stdout_console

TEXT = "[bold]a[/red] :rocket:"


def test_text_of_people_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    put_table([{"name": TEXT, "note": "[red]b"}], ("name", "note"))
    assert capsys.readouterr().out.splitlines()[1].rstrip() == f"{TEXT}  [red]b"
    stdout_console().print(_screen(Picture([TEXT], [TEXT]), datetime(2026, 1, 31), is_away=False))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()[:2]] == [TEXT, TEXT]
