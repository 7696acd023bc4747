"""Seals what the service must be able to read again, secrets of jobs and signing keys of webhooks: AES-GCM.

The keys lie in a file outside the database, one a line as 64 hexadecimal digits. The first one seals, all of them open:
so a new key is put in front of the old one, which stays until nothing is sealed under it any more. Each sealed text
names its key, and is bound to its purpose: moved to another row it cannot be opened.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from service.auth import read_or_make_secret
from service.errors import ErrorKind, ServiceError

KEY_FILE = "secret-keys"
KEY_BYTES = 32
NONCE_BYTES = 12
"""What AES-GCM wants. Random ones are good for 2^32 texts under one key."""
SEAL_BYTES = NONCE_BYTES + 16
"""By which a sealed text is longer: the nonce and the tag."""
_KEY = re.compile(r"[0-9a-fA-F]{64}")


class VaultShut(ServiceError):
    """A key is missing or wrong; the message says which, and what to do."""

    def __init__(self, because: str) -> None:
        super().__init__(ErrorKind.NOT_READY, f"Secrets cannot be used: {because}.")


@dataclass(frozen=True)
class Sealed:
    """A text that nobody reads without its key."""

    key_id: str
    data: bytes = field(repr=False)
    """The nonce, then the ciphertext with its tag."""


class Vault:
    """The keys of a service.

    Args:
        keys: of 32 bytes each; the first one seals.
        fault: why there are none.
    """

    def __init__(self, keys: Sequence[bytes], fault: str = "") -> None:
        self._keys = {key_id_of(key): AESGCM(key) for key in keys}
        self.key_id = key_id_of(keys[0]) if keys else ""
        """Of the key that seals."""
        self.fault = fault or ("" if keys else "the key file holds no key")

    def knows(self, key_id: str) -> bool:
        """Whether what was sealed under this key can be opened."""
        return key_id in self._keys

    def seal(self, text: str, purpose: str) -> Sealed:
        """Seal a text for one purpose.

        Raises:
            VaultShut: there is no key.
        """
        if not self._keys:
            raise VaultShut(self.fault)
        nonce = os.urandom(NONCE_BYTES)
        return Sealed(self.key_id, nonce + self._keys[self.key_id].encrypt(nonce, text.encode(), purpose.encode()))

    def open(self, sealed: Sealed, purpose: str) -> str:
        """The text.

        Raises:
            VaultShut: its key is not there, or it was sealed for something else, or damaged.
        """
        key = self._keys.get(sealed.key_id)
        if key is None:
            raise VaultShut(self.fault or missing_key(sealed.key_id))
        nonce, ciphertext = sealed.data[:NONCE_BYTES], sealed.data[NONCE_BYTES:]
        try:
            return key.decrypt(nonce, ciphertext, purpose.encode()).decode()
        except (InvalidTag, ValueError):
            raise VaultShut("one of them is damaged in the database; set it anew") from None

    def seal_anew(self, sealed: Sealed, purpose: str) -> Sealed:
        """The same under the key that seals now; what cannot be opened stays as it is, for whoever brings its key."""
        try:
            return self.seal(self.open(sealed, purpose), purpose)
        except VaultShut:
            return sealed


def missing_key(key_id: str) -> str:
    """What to do where the key of something sealed is not there."""
    return f"some were sealed under the key {key_id}, which is not in the key file; put it back, or set them anew"


def key_id_of(key: bytes) -> str:
    """The name of a key, which tells nothing of it."""
    return hashlib.sha256(b"rubato key id:" + key).hexdigest()[:16]


def open_vault(home: Path, key_file: Path | None) -> Vault:
    """The vault of a home. Its key file is made at the first start; one that settings name must be there.

    What is wrong with the file is the vault's `fault`: jobs that need no secret go on without it.
    """
    try:
        if key_file is None:
            text = read_or_make_secret(home / KEY_FILE, lambda: secrets.token_hex(KEY_BYTES))
        else:
            text = key_file.read_text(encoding="ascii")
    except UnicodeDecodeError:
        text = "no text"
    except OSError as error:
        return Vault((), f"the key file cannot be read ({error.strerror})")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not all(_KEY.fullmatch(line) for line in lines):
        return Vault((), "the key file holds something else than keys of 64 hexadecimal digits, one a line")
    return Vault([bytes.fromhex(line) for line in lines])
