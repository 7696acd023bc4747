"""`rubato login` and `rubato logout`: which service the commands go to, and a link for the browser."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from rubato.cli.options import JsonOption, UrlOption, connect
from rubato.cli.output import note, put, put_json
from rubato.errors import ApiForbidden, ApiUnauthenticated, UserError
from rubato.home import Home, Login, complete_url, find_url, is_loopback


def login(
    address: Annotated[
        str | None,
        typer.Argument(metavar="[ADDRESS]", help="Of a service, such as https://rubato.example. Asks for your token."),
    ] = None,
    *,
    check: Annotated[bool, typer.Option("--check", help="Only say where commands go, and as whom.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Sign in to a service, so that all commands go there.

    Without ADDRESS it prints a link that signs a browser in, once.
    The token comes from stdin or is typed at the prompt, is tried, and is kept in RUBATO_HOME/login.json (0600).
    Options win over the environment (RUBATO_URL, RUBATO_TOKEN), and that over the file.
    """
    if check:
        _check(url or address, as_json=as_json)
    elif address is not None:
        _sign_in(complete_url(address), as_json=as_json)
    else:
        with connect(url) as client:
            link = client.login_link()
        put_json({"login": link}) if as_json else put(link)


def logout(*, as_json: JsonOption = False) -> None:
    """Forget the service and the token of `rubato login`. The token itself stays good until revoked."""
    home = Home.from_environment()
    known = home.read_login()
    was_there = home.forget_login()
    if as_json:
        put_json({"url": known.url if known else None, "logged_out": was_there})
    elif was_there:
        note(f"Forgot {known.url if known else 'a file that was no login'}; commands go to {find_url(None, home)} now.")
    else:
        note("There was no login to forget.")


def _check(url: str | None, *, as_json: bool) -> None:
    with connect(url) as client:
        me, address = client.whoami(), client.url
    if as_json:
        put_json({"url": address, **me})
    else:
        put(f"{address} as {describe_user(me)}")


def _sign_in(address: str, *, as_json: bool) -> None:
    from rubato.client import Client

    home = Home.from_environment()
    if address.startswith("http://") and not is_loopback(address):
        note(f"{address} is not encrypted: whoever is on the way can read the token. Use https where you can.")
    token = read_token(address)
    with Client(address, token, home=home) as client:
        try:
            me = client.whoami()
        except ApiUnauthenticated as error:
            raise ApiUnauthenticated(
                f"{address} does not know this token ({error}); nothing was kept",
                status=error.status,
                problem=error.problem,
            ) from error
        except ApiForbidden as error:
            raise ApiForbidden(
                f"{address} knows this token, but not as a person's ({error}); nothing was kept. Sign in with a token "
                "of a user: an admin makes one with `rubato token create NAME --user USER`",
                status=error.status,
                problem=error.problem,
            ) from error
    home.write_login(Login(address, token))
    if as_json:
        put_json({"url": address, **me})
        return
    signed_in = f"Signed in to {address} as {describe_user(me)}"
    if not (first := _before_login(Login(address, token), home)):
        note(f"{signed_in}; all commands go there. `rubato logout` ends that.")
        return
    go = f"commands go to {find_url(None, home)}{' with another token' if 'RUBATO_TOKEN' in first else ''}"
    names, are = " and ".join(first), "are" if len(first) > 1 else "is"
    note(f"{signed_in}. But {names} {are} set in this shell, and what is set comes first: {go}.")
    note(f"`unset {' '.join(first)}` ends that.")


def _before_login(login: Login, home: Home) -> list[str]:
    """Variables of the environment by which commands go elsewhere, or with another token."""
    names = ["RUBATO_URL"] if find_url(None, home) != login.url else []
    is_other = os.environ.get("RUBATO_TOKEN", "") not in ("", login.token)
    return [*names, "RUBATO_TOKEN"] if is_other else names


def describe_user(me: dict[str, Any]) -> str:
    """`ada`, or `ada (admin)`; a token of no user is named by its role."""
    name, role = me.get("user") or me.get("name"), me.get("role")
    return f"{name} ({role})" if name and role else str(name or role or "?")


def read_token(address: str) -> str:
    """The token from stdin, or from a prompt that does not show it; never an argument, which others can see.

    Raises:
        UserError: there is none.
    """
    if sys.stdin.isatty():
        text: str = typer.prompt(f"Token for {address}", hide_input=True, err=True)
    else:
        text = sys.stdin.read()
    token = text.strip()
    if not token:
        raise UserError(f"stdin is empty; pass the token there: rubato login {address} < token-file")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError("this is no token: it holds blanks or other signs; `rubato token create` prints one")
    return token
