from __future__ import annotations

from pathlib import Path

import pytest

from rubato.errors import UserError
from rubato.wire.storage import parse_storage


@pytest.mark.parametrize(
    ("text", "scheme", "shown"),
    [
        ("/shared/rubato", "file", "/shared/rubato"),
        ("kept", "file", "kept"),
        ("file:///shared/with%20space/", "file", "/shared/with space"),
        ("file://localhost/shared", "file", "/shared"),
        ("s3://bucket/some/prefix/", "s3", "s3://bucket/some/prefix"),
        ("s3://bucket", "s3", "s3://bucket"),
        ("memory://x", "memory", "memory:///x"),
    ],
)
def test_paths_and_uris(text: str, scheme: str, shown: str) -> None:
    uri = parse_storage(text)
    assert (uri.scheme, str(uri)) == (scheme, shown)
    assert parse_storage(str(uri)) == uri
    below = uri / "job_1" / "1-5"
    assert str(below) == f"{shown}/job_1/1-5"
    assert below.name == "1-5"


def test_relative_folders_are_those_of_the_caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/somewhere")
    assert str(parse_storage("kept").absolute()) == f"{tmp_path}/kept"
    assert str(parse_storage("~/kept").absolute()) == "/somewhere/kept"
    assert str(parse_storage("s3://b/x").absolute()) == "s3://b/x"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "is no storage: write a folder"),
        ("S3://bucket", "is no storage"),
        ("://x", "is no storage"),
        ("file://host/share", "write file:///ABSOLUTE/FOLDER"),
        ("file:///", "write file:///ABSOLUTE/FOLDER"),
        ("https://example.org/x", "cannot be written to"),
        ("s3:///prefix", "names no bucket: write s3://BUCKET/PREFIX"),
        ("s3://", "names no bucket"),
    ],
)
def test_what_is_no_storage_is_refused_with_advice(text: str, advice: str) -> None:
    with pytest.raises(UserError, match=advice):
        parse_storage(text)


def test_credentials_in_an_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(UserError, match="carries credentials") as refused:
        parse_storage("s3://key:secret@bucket/x")
    assert "secret@" not in str(refused.value)
