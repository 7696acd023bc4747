from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rubato.cli.specfile import (
    apply_flags,
    apply_settings,
    draft_of_recipe,
    imply_working_dir,
    read_draft,
    read_environment_flags,
    read_yaml,
)
from rubato.errors import EntrypointError, UserError
from rubato.wire.spec import parse_spec


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.yaml", "name: a\nconfig: {lr: 0.1}\n"),
        ("job.yml", "name: a\nconfig: {lr: 0.1}"),
        ("job.json", '{"name": "a", "config": {"lr": 0.1}}'),
    ],
)
def test_a_spec_file_is_relative_to_its_own_folder(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    draft = read_draft(str(tmp_path / name))
    assert draft.data == {"name": "a", "config": {"lr": 0.1}}
    assert draft.folder == tmp_path


def test_a_program_becomes_a_spec_with_a_name_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "My_Train.py").write_text("")
    first, second = (read_draft(f"{tmp_path}/My_Train.py:fit") for _ in range(2))
    # The folder is packed as it is, so the entrypoint is named inside it.
    assert first.data["entrypoint"] == "My_Train.py:fit"
    assert first.data["working_dir"] == "."
    assert first.folder == tmp_path
    assert first.data["name"] != second.data["name"]
    assert parse_spec(first.data).name.startswith("my_train-")


@pytest.mark.parametrize(
    ("data", "is_implied"),
    [
        ({"entrypoint": "train.py"}, True),
        ({"entrypoint": "train.py:fit", "package": None}, True),
        ({"entrypoint": "train.py", "working_dir": "work"}, False),
        ({"entrypoint": "train.py", "package": "0" * 64}, False),
        ({"entrypoint": "package.module:train"}, False),
        ({"recipe": "image-classifier"}, False),
    ],
)
def test_the_folder_of_a_spec_is_packed_where_a_file_has_no_other(
    tmp_path: Path, data: dict[str, Any], is_implied: bool
) -> None:
    (tmp_path / "train.py").write_text("")
    assert imply_working_dir(data, tmp_path) == ({**data, "working_dir": "."} if is_implied else data)


def test_odd_file_names_still_make_valid_job_names(tmp_path: Path) -> None:
    for stem in ("_", "9 lives!", "A" * 90, "é"):
        (tmp_path / f"{stem}.py").write_text("")
        parse_spec({**read_draft(str(tmp_path / f"{stem}.py")).data, "entrypoint": "train.py"})


def test_an_unknown_recipe_is_told_before_anything_is_sent() -> None:
    with pytest.raises(EntrypointError, match="did you mean 'image-classifier'"):
        draft_of_recipe("image-classifer")


def test_a_recipe_needs_no_file() -> None:
    assert parse_spec(draft_of_recipe("image-classifier").data).recipe == "image-classifier"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("job.yaml", None, "there is no file"),
        ("train.py", None, "there is no file"),
        ("job.toml", "", "neither a spec"),
        ("job.yaml", "- a\n", r"holds \['a'\], not the fields"),
        ("job.yaml", "", "is empty; see `rubato init`"),
        ("job.yaml", "a: [", "not well-formed"),
        ("job.json", "{", "not well-formed"),
    ],
)
def test_what_cannot_be_read_says_so(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_draft(str(tmp_path / name))


def test_settings_reach_into_fields_and_have_types() -> None:
    data = {"name": "a", "workers": {"min": 1}}
    changed = apply_settings(
        data, {"workers.max": "8", "seed": "3", "labels.team": "vision", "reproducible": "true", "env.A": ""}
    )
    assert changed == {
        "name": "a",
        "workers": {"min": 1, "max": 8},
        "seed": 3,
        "labels": {"team": "vision"},
        "reproducible": True,
        "env": {"A": ""},
    }
    assert data == {"name": "a", "workers": {"min": 1}}


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(UserError, match=r"config\.lr= has no value; write config\.lr=null for none"):
        apply_settings({"name": "a"}, {"config.lr": ""})
    with pytest.raises(UserError, match=r"config is a section, its keys are set as config\.KEY=VALUE$"):
        apply_settings({"name": "a"}, {"config": ""})
    assert apply_settings({}, {"labels.note": "", "config.note": "''"}) == {
        "labels": {"note": ""}, "config": {"note": ""},
    }  # fmt: skip


def test_a_setting_through_something_without_fields_is_refused() -> None:
    with pytest.raises(UserError, match="name is 'a', which has no fields"):
        apply_settings({"name": "a"}, {"name.b": "1"})


def test_a_setting_that_is_not_yaml_is_refused() -> None:
    with pytest.raises(UserError, match="quote it"):
        apply_settings({}, {"name": "["})


def test_flags_win_over_the_file() -> None:
    data = {"name": "a", "workers": {"initial": 1, "max": 4}, "env": {"A": None, "B": "2"}, "config": {"lr": 1}}
    changed = apply_flags(data, name="b", workers=3, config={"lr": "0.5"}, env={"A": "1"})
    assert changed == {
        "name": "b",
        "workers": {"initial": 3, "max": 4},
        "env": {"A": "1", "B": "2"},
        "config": {"lr": 0.5},
    }


def test_environment_flags_take_the_shells_value_where_none_is_given() -> None:
    assert read_environment_flags(["A=1=2", "B"], {"B": "x"}) == {"A": "1=2", "B": "x"}
    with pytest.raises(UserError, match="does not set C"):
        read_environment_flags(["C"], {})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("3E4", 30000.0),
        ("-.5e1", -5.0),
        ("1.5", 1.5),
        ("7", 7),
        ("e3", "e3"),
        ("'1e3'", "1e3"),
        ("", None),
    ],
)
def test_numbers_as_people_write_them(text: str, value: object) -> None:
    found = read_yaml(text)
    assert (found, type(found)) == (value, type(value))


def test_a_key_is_a_text() -> None:
    """YAML 1.1 has `on` and `no` for truth values."""
    text = "notifications:\n  - {on: [failed], webhook: team}\nconfig: {no: 1, true: off}\n"
    assert read_yaml(text) == {
        "notifications": [{"on": ["failed"], "webhook": "team"}],
        "config": {"no": 1, "true": False},
    }


def test_a_file_beside_that_is_called_almost_so_is_named(tmp_path: Path) -> None:
    for name in ("train.py", "job.yaml", "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"there is no file .*trian\.py; did you mean 'train\.py'\?$"):
        read_draft(f"{tmp_path}/trian.py:fit")
    with pytest.raises(UserError, match=r"jobs\.yaml; did you mean 'job\.yaml'\?$"):
        read_draft(f"{tmp_path}/jobs.yaml")
    with pytest.raises(UserError, match=r"there is no file .*note\.py$"):
        read_draft(f"{tmp_path}/note.py")
