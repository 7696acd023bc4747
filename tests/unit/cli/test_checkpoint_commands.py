from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.unit.cli.fake_service import FakeService, Reply, Request, Rubato


def checkpoint(step: int, **changes: Any) -> dict[str, Any]:
    files = [{"name": "a.safetensors", "bytes": 3, "sha256": ""}]
    return {"id": f"ckpt_{step}", "checkpoint_id": f"1-{step}", "attempt": 1, "step": step, "files": files, **changes}


def test_all_pages_are_listed(service: FakeService, rubato: Rubato) -> None:
    def answer(request: Request) -> Reply:
        if "cursor" not in request.query:
            return Reply({"items": [checkpoint(20, bytes=2_500_000, pinned=True)], "next_cursor": "1-20"})
        assert request.query["cursor"] == "1-20"
        return Reply({"items": [checkpoint(10, pinned=None)], "next_cursor": None})

    service.on("GET", "/jobs/digits/checkpoints", answer)
    lines = rubato("checkpoints", "ls", "digits").out.splitlines()
    assert lines[1].split() == ["ckpt_20", "20", "1", "2.5", "MB", "yes", "-"]
    assert lines[2].split() == ["ckpt_10", "10", "1", "-", "?", "-"]
    assert [item["step"] for item in rubato("checkpoints", "ls", "digits", "--json").json] == [20, 10]


def test_download_brings_every_file(service: FakeService, rubato: Rubato, tmp_path: Path) -> None:
    service.on("GET", "/checkpoints/ckpt_20", checkpoint(20))
    service.on("GET", "/checkpoints/ckpt_20/files/a.safetensors", Reply(content=b"abc"))
    done = rubato("checkpoints", "download", "ckpt_20", str(tmp_path / "new" / "folder"))
    assert done.code == 0, done.err
    assert (tmp_path / "new" / "folder" / "a.safetensors").read_bytes() == b"abc"


def test_what_came_damaged_is_not_kept(service: FakeService, rubato: Rubato, tmp_path: Path) -> None:
    files = [{"name": "a.safetensors", "bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}]
    service.on("GET", "/checkpoints/ckpt_20", checkpoint(20, files=files))
    for content, code in ((b"abd", 1), (b"abc", 0)):
        service.on("GET", "/checkpoints/ckpt_20/files/a.safetensors", Reply(content=content))
        done = rubato("checkpoints", "download", "ckpt_20", str(tmp_path / "new"))
        assert (done.code, "other bytes than its checkpoint names" in done.err) == (code, bool(code))
        assert len(list((tmp_path / "new").iterdir())) == 1 - code


def test_pin_by_id_goes_through_the_service(service: FakeService, rubato: Rubato) -> None:
    service.on("PATCH", "/checkpoints/ckpt_20", checkpoint(20, pinned=True))
    assert rubato("pin", "ckpt_20").code == 0
    assert service.requests[-1].json == {"pinned": True}
    assert rubato("pin", "ckpt_20", "--undo").code == 0
    assert service.requests[-1].json == {"pinned": False}


def test_rm_tells_why_it_is_refused(service: FakeService, rubato: Rubato) -> None:
    service.on("DELETE", "/checkpoints/ckpt_20", Reply({"detail": "it is the newest", "code": "conflict"}, status=409))
    done = rubato("checkpoints", "rm", "ckpt_20")
    assert (done.code, "it is the newest" in done.err) == (1, True)
