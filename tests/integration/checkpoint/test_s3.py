"""Checkpoints in a real S3 server. Whole jobs with it: tests/chaos/test_s3.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from folder_contract import FolderContract, content, refuses_to_prepare
from s3_server import S3Server

from rubato.checkpoint.storage import Folder, open_folder
from rubato.errors import CheckpointError

ROOT = Path(__file__).resolve().parents[3]
STEPS, BATCH, MICROBATCHES = 40, 96, 12

pytestmark = pytest.mark.timeout(300)


class TestS3Folder(FolderContract):
    @pytest.fixture
    def folder(self, s3: S3Server, request: pytest.FixtureRequest) -> Iterator[Folder]:
        folder = open_folder(f"s3://jobs/{request.node.name}")
        yield folder
        folder.remove_all()

    def test_a_missing_bucket_is_told_before_anything_relies_on_it(self, s3: S3Server) -> None:
        folder = open_folder("s3://nobody-made-this/x")
        refuses_to_prepare(folder, "cannot write rubato-probe in s3://nobody-made-this/x: .*does the bucket exist")
        with pytest.raises(CheckpointError, match="does the bucket exist"):
            folder.write("a", [b"x" * 100])

    def test_another_process_sees_what_was_written(self, folder: Folder) -> None:
        code = f"from rubato.checkpoint.storage import open_folder; open_folder({str(folder)!r}).write('a', [b'x'])"
        assert not folder.exists("a")
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert content(folder, "a") == b"x"
