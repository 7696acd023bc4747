"""What a training process says of an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from rubato.entrypoint import load_function
from rubato.errors import SpecError, SpecMismatch
from rubato.launch import child
from rubato.wire.spec import parse_spec

PROGRAM = """
from rubato.errors import SpecMismatch
from rubato.wire.spec import is_name, parse_spec

def refused():
    parse_spec({"entrypoint": "program.py:train", "batch": 3})

def broken():
    is_name(None)

def asked_in_vain():
    raise SpecMismatch("local_updates.cut: no model has a module 'tail'")

def own():
    raise ValueError("no")
"""


def told(folder: Path, name: str) -> list[str]:
    """The lines that are said of what this function of a program raises."""
    (folder / "program.py").write_text(PROGRAM)
    function, _ = load_function("program.py", name, folder)
    with pytest.raises((SpecError, SpecMismatch, TypeError, ValueError)) as raised:
        function()
    error = raised.value
    assert error.__traceback__ is not None
    return child._traceback_of(error.with_traceback(error.__traceback__.tb_next)).splitlines()


def test_what_is_refused_is_told_from_the_user_s_call(tmp_path: Path) -> None:
    lines = told(tmp_path, "refused")
    assert [line.strip() for line in lines if line.lstrip().startswith("File ")] == [
        f'File "{tmp_path / "program.py"}", line 6, in refused'
    ]
    assert lines[-1].startswith("rubato.errors.SpecError: ")


@pytest.mark.parametrize(("name", "last"), [("broken", "spec.py"), ("own", "program.py")])
def test_what_breaks_is_told_whole(tmp_path: Path, name: str, last: str) -> None:
    files = [line for line in told(tmp_path, name) if line.lstrip().startswith("File ")]
    assert f'{last}"' in files[-1]
    assert 'program.py"' in files[0]


def test_where_the_spec_is_to_be_mended_no_line_of_the_program_is_named(tmp_path: Path) -> None:
    assert told(tmp_path, "asked_in_vain") == []


def test_what_no_code_of_the_user_has_part_in_is_a_sentence_alone(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as raised:
        parse_spec({"batch": 3})
    error = raised.value
    assert error.__traceback__ is not None
    assert child._traceback_of(error.with_traceback(error.__traceback__.tb_next)) == ""
