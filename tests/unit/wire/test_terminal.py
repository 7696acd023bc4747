from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.wire.terminal import readable

COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


@pytest.mark.parametrize(
    "sequence",
    [
        "\x1b]0;a title\x07",
        "\x1b]52;c;Y3VybCBldmls\x1b\\",
        "\x1b]8;;https://example.org\x1b\\",
        "\x9d0;a title\x9c",
        "\x1bP+q544e\x1b\\",
        "\x1b_a\x1b\\",
        "\x1b[2J",
        "\x1b[?1049h",
        "\x1b[6n",
        "\x1b[3 q",
        "\x1b[>4;2m",
        "\x9b2J",
        "\x1bc",
        "\x1b(0",
        "\x1b#8",
        "\x07",
        "\x08",
        "\r",
        "\x0e",
        "\x7f",
        "\x85",
        "\x1b",
    ],
)
@pytest.mark.parametrize("keep_colours", [True, False])
def test_what_steers_a_terminal_is_left_out(sequence: str, keep_colours: bool) -> None:
    assert readable(f"one{sequence}\ttwo\n", keep_colours=keep_colours) == "one\ttwo\n"


def test_a_sequence_without_end_hides_nothing() -> None:
    assert readable("one\x1b]0;two\nthree\x07", keep_colours=True) == "one0;two\nthree"
    assert readable("one\x1b[31", keep_colours=True) == "one31"


def test_colours_stay_where_they_are_wanted_and_end_with_the_text() -> None:
    red = "\x1b[1;38;5;9mred"
    assert readable(red, keep_colours=True) == red + "\x1b[0m"
    assert readable(red + "\x1b[0m", keep_colours=True) == red + "\x1b[0m"
    assert readable(red, keep_colours=False) == "red"


signs = st.text(st.sampled_from("a[]0;m\\P \t\n\r\x07\x1b\x7f\x9b\x9c\x9d"))


@given(signs)
def test_no_control_character_is_left_but_those_of_colours(text: str) -> None:
    for found in (readable(text, keep_colours=False), COLOUR.sub("", readable(text, keep_colours=True))):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", found)


@pytest.mark.parametrize("text", ["\x1b]", "\x9d", "\x9b", "\x1b[", "\x1b[0", "\x1b "])
def test_a_long_line_takes_no_longer_than_its_length(text: str) -> None:
    began = time.monotonic()
    readable(text * 200_000, keep_colours=True)
    assert time.monotonic() - began < 10
