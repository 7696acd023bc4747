from __future__ import annotations

import sys

import pytest

from rubato.cli.app import run
from tests.unit.cli.fake_service import Rubato


def test_a_script_that_a_shell_reads_comes_without_a_remark(rubato: Rubato) -> None:
    done = rubato("completion", "bash")
    assert (done.code, done.err) == (0, "")
    assert "_RUBATO_COMPLETE" in done.out


def test_a_person_at_a_terminal_is_told_what_to_do_with_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(["completion", "zsh"]) == 0
    assert 'Put to use by: eval "$(rubato completion zsh)"' in capsys.readouterr().err
