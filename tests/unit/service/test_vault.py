from __future__ import annotations

from pathlib import Path

import pytest

from service.vault import KEY_BYTES, Sealed, Vault, VaultShut, key_id_of, open_vault

OLD, NEW = b"o" * KEY_BYTES, b"n" * KEY_BYTES


def test_what_is_sealed_is_opened_for_its_purpose_only() -> None:
    vault = Vault([NEW])
    sealed = vault.seal("the välue", "secret:default:TOKEN")
    assert b"value" not in sealed.data
    assert vault.open(sealed, "secret:default:TOKEN") == "the välue"
    assert vault.seal("the välue", "secret:default:TOKEN").data != sealed.data, "a fresh nonce each time"
    broken = Sealed(sealed.key_id, sealed.data[:-1] + bytes([sealed.data[-1] ^ 1]))
    for wrong, purpose in (
        (sealed, "secret:other:TOKEN"),
        (broken, "secret:default:TOKEN"),
        (Sealed(vault.key_id, b""), ""),
    ):
        with pytest.raises(VaultShut, match="damaged"):
            vault.open(wrong, purpose)


def test_the_first_key_seals_and_all_open() -> None:
    before = Vault([OLD]).seal("value", "p")
    both = Vault([NEW, OLD])
    assert both.open(before, "p") == "value"
    assert both.seal("value", "p").key_id == key_id_of(NEW) == both.key_id
    with pytest.raises(VaultShut, match=f"under the key {key_id_of(OLD)}"):
        Vault([NEW]).open(before, "p")


def test_the_file_of_a_home_is_made_once_and_private(tmp_path: Path) -> None:
    sealed = open_vault(tmp_path, None).seal("value", "p")
    file = tmp_path / "secret-keys"
    assert file.stat().st_mode & 0o777 == 0o600
    assert open_vault(tmp_path, None).open(sealed, "p") == "value"
    assert open_vault(tmp_path / "nowhere", file).open(sealed, "p") == "value"
    file.write_text(f"{NEW.hex()}\n\n{file.read_text()}")
    assert open_vault(tmp_path, None).open(sealed, "p") == "value"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "holds no key"),
        (b"short", "64 hexadecimal digits"),
        (NEW.hex().encode() + b"\nnonsense", "64 hexadecimal digits"),
        (b"\xff\xfe", "64 hexadecimal digits"),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_a_wrong_file_is_a_fault_and_no_exception(tmp_path: Path, content: bytes | None, fault: str) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    vault = open_vault(tmp_path, file)
    assert fault in vault.fault
    for use in (lambda: vault.seal("value", "p"), lambda: vault.open(Sealed("0" * 16, b"x" * 40), "p")):
        with pytest.raises(VaultShut) as caught:
            use()
        assert fault in caught.value.message
        assert NEW.hex() not in caught.value.message
