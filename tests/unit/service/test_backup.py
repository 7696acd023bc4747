"""By how much a restore raises the attempts of jobs, over all that were granted since; and swaps, done once."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.wire.storage import MANIFEST_NAME
from service.backup.__main__ import ProgressLines
from service.backup.attempts import MARGIN, MOST, MOST_A_SECOND, decide_raise
from service.backup.contents import key_files
from service.backup.restore import find_newer
from service.backup.swap import Move, begin_swap, finish_swap, settle_restore
from service.settings import Settings

MADE = datetime(2026, 1, 1, tzinfo=UTC)
seconds = st.floats(min_value=0, max_value=2 * 365 * 24 * 3600)


@given(since_backup=seconds, between=seconds)
def test_a_later_restore_raises_by_more_than_was_granted_since_an_earlier_one(
    since_backup: float, between: float
) -> None:
    earlier = MADE + timedelta(seconds=since_backup)
    later = earlier + timedelta(seconds=between)
    granted = int((later - earlier).total_seconds() * MOST_A_SECOND)
    first, second = decide_raise(MADE, earlier), decide_raise(MADE, later)
    assert first >= MARGIN + int(since_backup)
    assert second >= min(MOST, first + granted)


def test_a_backup_from_the_future_raises_by_the_margin() -> None:
    """A clock that was ahead."""
    assert decide_raise(MADE + timedelta(minutes=1), MADE) == MARGIN


def test_the_keys_of_a_home_are_backed_up_and_not_a_persons_login_elsewhere(tmp_path: Path) -> None:
    for name in ("token", "hmac-key", "my-own-key", "login.json", "run.json", "rubato.db", "service.log"):
        (tmp_path / name).write_text("x")
    assert [path.name for path in key_files(tmp_path)] == ["hmac-key", "my-own-key", "token"]


def test_a_swap_that_was_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its folder could not be removed."""
    logs = tmp_path / "logs"
    for folder in (logs, tmp_path / ".restore"):
        folder.mkdir()
    (tmp_path / ".restore" / "database.pending").touch()
    begin_swap(tmp_path, [Move(None, logs, tmp_path / "aside" / "logs")])
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        finish_swap(tmp_path)
    assert not logs.exists()
    logs.mkdir()
    settle_restore(tmp_path)
    assert logs.exists()


def test_progress_ends_at_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    tell = ProgressLines()
    for done in (100, 770, 900, 1000, 1000):
        tell("copying", done, 1000)
    for done in (0, 1):
        tell("migrating", done, 1)
    tell("unpacking", 1_500_000, 1_500_000)
    lines = ["copying: 10 % of 1.0 kB", "copying: 100 % of 1.0 kB", "migrating", "unpacking: 100 % of 1.5 MB"]
    assert capsys.readouterr().err.splitlines() == lines


def test_of_missing_checkpoints_it_is_known_which_newer_ones_there_are(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    for name in ("job_1/1-10", "job_1/1-40", "job_1/2-30", "job_1/notes", "job_2/1-5", "job_3/1-9"):
        (storage / name).mkdir(parents=True)
        (storage / name / MANIFEST_NAME).touch()
    (storage / "job_1" / "2-50").mkdir()  # begun, and not finished
    settings = Settings(home=tmp_path, storage=str(storage))
    missing = ["job_1/1-20", "job_1/1-30", "job_2/1-6", "job_4/1-1"]
    assert find_newer(settings, missing) == ["job_1/1-40", "job_1/2-30"]
