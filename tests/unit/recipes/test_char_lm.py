from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from rubato.recipes import char_lm
from rubato.recipes.char_lm import GPT, Config, Windows, read_text


def test_the_text_is_that_of_the_standard_library_and_bounded() -> None:
    text = read_text(5000)
    assert len(text) == 5000
    first = sorted(Path(os.__file__).parent.glob("*.py"))[0].read_text(encoding="utf-8")
    length = min(5000, len(first))
    assert bytes(text[:length].tolist()) == first.encode("ascii", "replace")[:length]
    assert int(read_text(300_000).max()) < char_lm.CHARACTERS
    assert torch.equal(read_text(300_000), read_text(300_000))


def test_a_python_without_source_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "__file__", str(tmp_path / "os.py"))
    with pytest.raises(FileNotFoundError, match="ships without it"):
        read_text(10)


def test_windows_cover_the_text_once_and_look_one_ahead() -> None:
    windows = Windows(torch.arange(101), 10)
    assert len(windows) == 10
    seen = torch.cat([windows[index][0] for index in range(10)])
    following = torch.cat([windows[index][1] for index in range(10)])
    assert seen.tolist() == list(range(100))
    assert following.tolist() == list(range(1, 101))


def test_the_model_sees_only_what_came_before() -> None:
    torch.manual_seed(0)
    model = GPT(Config(context=8)).eval()
    codes = torch.randint(128, (1, 8))
    changed = codes.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 128
    before, after = model(codes), model(changed)
    assert before.shape == (1, 8, 128)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])
