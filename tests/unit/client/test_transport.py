from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.client.transport import KEEP_ALIVE, LineSplitter, Message, MessageParser
from rubato.errors import ApiError


def read_messages(lines: Iterable[str]) -> list[Message]:
    parser = MessageParser()
    return [message for message in map(parser.feed, lines) if message is not None]


def test_messages_with_their_ids_names_and_several_lines_of_data() -> None:
    text = "id: 7\nevent: log\ndata: {\ndata: }\n\n: ping\n\ndata:[1]\nretry: 5\nunknown\n\nid: 8\n\nid:\n\ndata: {}"
    assert read_messages(text.split("\n")) == [
        Message("log", {}, "7"),
        Message(KEEP_ALIVE, None),
        Message("message", [1], None),
        Message(KEEP_ALIVE, None, "8"),
    ]


def test_data_that_is_not_json_is_an_error() -> None:
    with pytest.raises(ApiError, match="not JSON"):
        read_messages(["data: nope", ""])


@given(st.lists(st.tuples(st.sampled_from(["event", "job"]), st.integers(), st.text())))
def test_what_is_sent_is_what_is_read(sent: list[tuple[str, int, str]]) -> None:
    lines: list[str] = []
    for event, number, text in sent:
        lines += [f"id: {number}", f"event: {event}", f"data: {json.dumps(text)}", ""]
    read = read_messages(lines)
    assert [(message.event, message.id, message.data) for message in read] == [
        (event, str(number), text) for event, number, text in sent
    ]


@given(st.lists(st.text(st.sampled_from("ab\r\n\u2028\u2029\x85\x0b"), max_size=5)))
def test_lines_end_where_event_streams_end_them_however_the_text_is_cut(pieces: list[str]) -> None:
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    text = "".join(pieces)
    expected = text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert lines == expected[:-1], "and what may be half of an end waits"
