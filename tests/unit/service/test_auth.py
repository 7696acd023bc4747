from __future__ import annotations

from pathlib import Path

from service.auth import Authority, has_token_form, load_key, new_token, read_or_make_secret


def test_tokens_carry_a_checksum() -> None:
    token = new_token()
    assert token.startswith("rbt_")
    assert has_token_form(token)
    for wrong in (token[:-1], token + "0", token.replace("rbt_", "rbx_"), "rbt_", "", token[:10] + "~" + token[11:]):
        assert not has_token_form(wrong)
    assert not has_token_form("rbt_é")


def test_a_secret_file_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = read_or_make_secret(path, new_token)
    assert read_or_make_secret(path, new_token) == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ["token"]


def test_of_two_that_make_it_one_wins_for_both(tmp_path: Path) -> None:
    path = tmp_path / "token"
    inner: list[str] = []

    def make_while_another_does() -> str:
        inner.append(read_or_make_secret(path, lambda: "the other's"))
        return "mine"

    assert read_or_make_secret(path, make_while_another_does) == "the other's" == inner[0]


def test_digests_depend_on_the_key_and_the_purpose(tmp_path: Path) -> None:
    one, two = Authority(load_key(tmp_path)), Authority(b"another key")
    assert one.digest("x") == Authority(load_key(tmp_path)).digest("x")
    assert one.digest("x") != two.digest("x")
    assert one.digest("job_1") not in one.job_ticket("job_1")
