from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest

from rubato.wire.cluster import Failure
from rubato.wire.codec import from_json, to_json
from rubato.wire.reasons import Reason, advice_for

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("reason", Reason)
def test_each_says_what_it_means_and_what_to_do(reason: Reason) -> None:
    assert reason.meaning.endswith(".")
    assert reason.advice.endswith(".")
    assert advice_for(reason.value) == reason.advice


def test_it_crosses_processes_as_a_plain_word() -> None:
    failure = Failure("user", Reason.HANG, "it hung")
    text = json.dumps(to_json(failure))
    assert '"reason": "hang"' in text
    assert from_json(Failure, json.loads(text)) == failure
    assert pickle.loads(pickle.dumps(failure)) == failure


def test_an_error_with_a_usual_cause_has_advice_of_its_own() -> None:
    missing = "ModuleNotFoundError: No module named 'foo'"
    assert "Install the library" in advice_for(Reason.USER_CODE_ERROR, missing)
    assert "FILE:FUNCTION" in advice_for(Reason.USER_CODE_ERROR, "EntrypointError: train.py has no function 'f'")
    apart = "SpecMismatch: local_updates.cut: no model has a module 'tail'"
    assert "field of the spec" in advice_for(Reason.USER_CODE_ERROR, apart)
    assert advice_for(Reason.USER_CODE_ERROR, "ValueError: no") == Reason.USER_CODE_ERROR.advice
    assert advice_for(Reason.HANG, missing) == Reason.HANG.advice


def test_one_of_a_newer_peer_has_advice_too() -> None:
    assert "events" in advice_for("moonstruck")


def test_what_the_code_advises_to_set_are_fields_of_the_spec() -> None:
    reference = (ROOT / "docs" / "reference" / "spec.md").read_text()
    for reason in Reason:
        for section, field in re.findall(
            r"\b(checkpoint|restart|limits|scheduling|workers|batch)\.([a-z_]+)", reason.advice
        ):
            part = reference.partition(f"\n## `{section}`\n")[2].partition("\n## ")[0]
            assert f"| `{field}` |" in part, f"{section}.{field}"
