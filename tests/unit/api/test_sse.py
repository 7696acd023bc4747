from __future__ import annotations

import json

import pytest

from api.sse import message


@pytest.mark.parametrize("sign", ["\n", "\r", "\u2028", "\u2029", "\x85", "ü"])
def test_a_message_has_one_line_of_data_whatever_it_says(sign: str) -> None:
    lines = message({"line": f"one{sign}two"}, event="log", id="7").decode().splitlines()
    data = [line for line in lines if line.startswith("data: ")]
    assert len(lines) == 4
    assert [json.loads(line.removeprefix("data: ")) for line in data] == [{"line": f"one{sign}two"}]
