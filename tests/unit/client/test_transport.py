from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.client import ApiUnauthenticated, AsyncClient, Client, ServiceUnreachable
from rubato.client.transport import KEEP_ALIVE, LineSplitter, Message, MessageParser
from rubato.errors import ApiError, UserError
from rubato.home import Home
from tests.https_server import HttpsServer, https_server


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


@pytest.fixture
def https(tmp_path: Path) -> Iterator[HttpsServer]:
    """A service that knows no token, with a certificate for 127.0.0.1 of an authority of its own."""
    with https_server(tmp_path / "tls") as server:
        server.answers += [401]
        yield server


def ask_for_a_link(url: str, home: Path, **environment: str) -> None:
    with Client(url, home=Home(home), environment=environment) as client:
        client.login_link()


def test_an_authority_of_ones_own_is_trusted_where_it_is_named(https: HttpsServer, tmp_path: Path) -> None:
    with pytest.raises(ApiUnauthenticated):
        ask_for_a_link(https.url("", "127.0.0.1"), tmp_path, SSL_CERT_FILE=str(https.ca_file))


def test_a_certificate_that_is_not_trusted_is_told_as_that(https: HttpsServer, tmp_path: Path) -> None:
    url = https.url("", "127.0.0.1")
    advice = r"certificate of https://.* \(unable to get local issuer certificate\).* in SSL_CERT_FILE"
    with pytest.raises(ServiceUnreachable, match=advice):
        ask_for_a_link(url, tmp_path)

    async def story() -> None:
        async with AsyncClient(url, home=Home(tmp_path), environment={}) as client:
            await client.login_link()

    with pytest.raises(ServiceUnreachable, match=advice):
        asyncio.run(story())
    with pytest.raises(ServiceUnreachable, match="Hostname mismatch"):
        ask_for_a_link(https.url("", "localhost"), tmp_path, SSL_CERT_FILE=str(https.ca_file))


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    for name in ("empty.pem", "nowhere.pem"):
        with pytest.raises(UserError, match=f"SSL_CERT_FILE=.*{name} holds no certificates"):
            ask_for_a_link("https://rubato.example", tmp_path, SSL_CERT_FILE=str(tmp_path / name))
