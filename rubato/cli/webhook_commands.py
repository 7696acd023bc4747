"""`rubato webhook`: addresses that are told what happens to a project's jobs."""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import Annotated, Literal

import typer

from rubato.cli.exits import ExitCode
from rubato.cli.options import JsonOption, ProjectOption, UrlOption, connect
from rubato.cli.output import fail, note, put, put_json, put_table, tell

app = typer.Typer(
    name="webhook",
    help="Tell other services what happens to the jobs of a project.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Of the webhook, in its project.")]


class Topic(StrEnum):
    """What a webhook can be told of, as the service knows it."""

    STATUS = "status"
    SCALING = "scaling"
    FAILURE = "failure"
    CHECKPOINT = "checkpoint"
    ASKED = "asked"


TEST_WAIT_S = 20.0
"""A try is over within 10 s, and begins at once where the endpoint did not just fail."""


@app.command("add")
def add_webhook(
    name: NameArgument,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="https://...")],
    *,
    on: Annotated[
        list[Topic] | None,
        typer.Option(help="What it is told of every job; repeatable. `asked`: only what jobs ask for. Default: all."),
    ] = None,
    project: ProjectOption = "default",
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Make a webhook, and print the secret that its messages are signed with: it is never shown again."""
    with connect(url) as client:
        made = client.webhooks.create(name, address, [str(topic) for topic in on or ()], project=project)
    if as_json:
        put_json(made)
        return
    put(str(made["secret"]))
    told = "what jobs ask for" if made["events"] == [Topic.ASKED] else ", ".join(made["events"])
    note(f"{name} is told of {told}. `rubato webhook test {name} --project {project}`")


@app.command("ls")
@app.command("list", hidden=True)  # what it was called before
def list_webhooks(*, project: ProjectOption = "default", as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List the webhooks of a project; never their secrets."""
    with connect(url) as client:
        rows = client.webhooks.list(project=project)
    if as_json:
        put_json(rows)
    else:
        put_table([{**row, "events": ",".join(row["events"])} for row in rows], ("name", "events", "url"))


@app.command("test")
def send_test(
    name: NameArgument, *, project: ProjectOption = "default", as_json: JsonOption = False, url: UrlOption = None
) -> None:
    """Send a test, once, and say what became of it. Ends with 1 where it did not arrive."""
    with connect(url) as client:
        delivery = client.webhooks.test(name, project=project, wait_s=TEST_WAIT_S)
    if as_json:
        put_json(delivery)
    elif delivery["status"] == "delivered":
        note(f"Delivered: {name} answered with {delivery['last_status']}.")
    else:
        fail(delivery["error"] or f"it was not tried yet; see `rubato webhook deliveries {name} --project {project}`")
    if delivery["status"] != "delivered":
        raise typer.Exit(ExitCode.ERROR)


@app.command("deliveries")
def list_deliveries(
    name: NameArgument,
    *,
    status: Annotated[
        Literal["pending", "delivered", "failed"] | None, typer.Option(help="Only these. Default: all.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 50,
    project: ProjectOption = "default",
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List what was sent in the last days, newest first, and what became of it."""
    with connect(url) as client:
        rows = list(islice(client.webhooks.deliveries(name, project=project, status=status), limit))
    if as_json:
        put_json(rows)
    else:
        put_table(rows, ("id", "type", "job_id", "status", "tries", "last_status", "created_at", "error"))


@app.command("rm")
@app.command("delete", hidden=True)
def delete_webhook(
    name: NameArgument, *, project: ProjectOption = "default", as_json: JsonOption = False, url: UrlOption = None
) -> None:
    """Delete a webhook with its deliveries."""
    with connect(url) as client:
        client.webhooks.delete(name, project=project)
    tell({"name": name, "project": project}, f"{name} is deleted from {project}.", as_json=as_json)
