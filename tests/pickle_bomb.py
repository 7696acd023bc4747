"""Bytes that make a folder as soon as somebody unpickles them, in the forms in which people pass pickles on."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path


class PickleBomb:
    """Lays a mark where it goes off."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._mark),)

    def forms(self) -> dict[str, bytes]:
        """By name; the first two were seen to go off."""
        found = {"binary": pickle.dumps(self), "text": pickle.dumps(self, protocol=0)}
        for data in found.values():
            pickle.loads(data)
            self._mark.rmdir()  # else nothing would be tried
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:  # as torch.save writes it
            file.writestr("archive/data.pkl", found["binary"])
            file.writestr("archive/version", "3\n")
        yaml = f"!!python/object/apply:os.mkdir ['{self._mark}']\n"
        return found | {"torch": archive.getvalue(), "yaml": yaml.encode()}

    @property
    def went_off(self) -> bool:
        """Whether somebody unpickled it."""
        return self._mark.exists()
