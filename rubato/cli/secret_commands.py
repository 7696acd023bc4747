"""`rubato secret`: values that jobs are given and nobody is shown."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rubato.cli.options import JsonOption, ProjectOption, UrlOption, connect
from rubato.cli.output import put_json, put_table, tell
from rubato.errors import UserError

app = typer.Typer(
    name="secret", help="Set, list and delete secrets of jobs.", no_args_is_help=True, rich_markup_mode=None
)
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Of the environment variable, such as WANDB_API_KEY.")
]


@app.command("set")
def set_secret(
    name: NameArgument, *, project: ProjectOption = "default", as_json: JsonOption = False, url: UrlOption = None
) -> None:
    """Set a secret to what comes on stdin, or is typed at the prompt; never to an argument, which others can see.

    One line end behind the value is left out.
    """
    value = read_value(name)
    with connect(url) as client:
        stored = client.secrets.set(name, value, project=project)
    advice = f"a job gets it with `secrets: [{name}]` in its spec, from its next attempt on."
    tell(stored, f"{name} is set in {project}; {advice}", as_json=as_json)


@app.command("ls")
@app.command("list", hidden=True)  # what it was called before
def list_secrets(*, project: ProjectOption = "default", as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List the secrets of a project; never their values."""
    with connect(url) as client:
        rows = client.secrets.list(project=project)
    if as_json:
        put_json(rows)
    else:
        put_table(rows, ("name", "updated_at", "updated_by"))


@app.command("rm")
@app.command("delete", hidden=True)
def delete_secret(
    name: NameArgument, *, project: ProjectOption = "default", as_json: JsonOption = False, url: UrlOption = None
) -> None:
    """Delete a secret; running attempts keep it, the next attempt of a job that needs it fails."""
    with connect(url) as client:
        client.secrets.delete(name, project=project)
    tell({"name": name, "project": project}, f"{name} is deleted from {project}.", as_json=as_json)


def read_value(name: str) -> str:
    """The value from stdin, or twice from a prompt that does not show it.

    Raises:
        UserError: there is none.
    """
    if sys.stdin.isatty():
        value: str = typer.prompt(f"Value of {name}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not value:
        raise UserError(f"stdin is empty; pass the value there: printf %s VALUE | rubato secret set {name}")
    return value
