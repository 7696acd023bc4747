"""`rubato token`, `rubato project`, `rubato user`: who may see and do what; `rubato audit`: who changed what."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from rubato.cli.options import JsonOption, UrlOption, connect, read_timeout
from rubato.cli.output import note, put, put_json, put_table, tell
from rubato.cli.render import format_time

token = typer.Typer(name="token", help="Make, list and revoke tokens.", no_args_is_help=True, rich_markup_mode=None)
project = typer.Typer(
    name="project",
    help="Make and delete projects, and say who may do what there.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
user = typer.Typer(
    name="user", help="Make users, shut them out, and let them in again.", no_args_is_help=True, rich_markup_mode=None
)
ProjectArgument = Annotated[str, typer.Argument(metavar="PROJECT", help="Name of a project.")]
UserArgument = Annotated[str, typer.Argument(metavar="USER", help="Name of a user.")]


@token.command("create")
def create_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for.")],
    *,
    owner: Annotated[str | None, typer.Option("--user", help="Whose it is. Default: yours.")] = None,
    role: Annotated[
        Literal["user", "cluster", "scraper"], typer.Option(help="cluster: an agent's; scraper: of Prometheus.")
    ] = "user",
    cluster: Annotated[
        str | None,
        typer.Option(metavar="CLUSTER", help="Of the role cluster: the only cluster it speaks for. Default: any."),
    ] = None,
    expires: Annotated[str | None, typer.Option(metavar="TIME", help="Such as 30d. Default: never.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Make a token, and print it: it is never shown again."""
    with connect(url) as client:
        expires_in_s = read_timeout(expires, "--expires")
        made = client.access.create_token(name, user=owner, role=role, expires_in_s=expires_in_s, cluster=cluster)
    if as_json:
        put_json(made)
        return
    put(str(made["token"]))
    note(f"{made['id']}, of {made['user'] or made['role']}; it is not shown again. `rubato token revoke {made['id']}`")


@token.command("ls")
def list_tokens(*, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List tokens, newest first; never their secrets."""
    with connect(url) as client:
        _show(
            client.access.tokens(),
            ("id", "name", "role", "user", "cluster", "expires_at", "revoked_at"),
            as_json=as_json,
        )


@token.command("revoke")
def revoke_token(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="tok_..., as `rubato token ls` lists it.")],
    *,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Make a token worthless; its sessions and streams end at once."""
    with connect(url) as client:
        client.access.revoke_token(token_id)
    tell({"id": token_id}, f"{token_id} is revoked.", as_json=as_json)


@project.command("add")
def add_project(
    name: ProjectArgument,
    *,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Make a project."""
    with connect(url) as client:
        made = client.access.create_project(name, description)
    tell(made, f"Made the project {name}; `rubato project grant {name} USER editor` lets somebody in.", as_json=as_json)


@project.command("ls")
def list_projects(*, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List your projects."""
    with connect(url) as client:
        _show(client.access.projects(), ("name", "role", "description"), as_json=as_json)


@project.command("set")
def set_project(
    name: ProjectArgument,
    *,
    description: Annotated[str, typer.Option(help="What it is for.")],
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Describe a project anew (admins of the service)."""
    with connect(url) as client:
        changed = client.access.update_project(name, description=description)
    tell(changed, f"{name}: {description or 'no description'}.", as_json=as_json)


@project.command("rm")
def remove_project(name: ProjectArgument, *, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Delete a project without jobs, with its secrets and webhooks (admins of the service)."""
    with connect(url) as client:
        client.access.delete_project(name)
    tell({"name": name}, f"The project {name} is deleted.", as_json=as_json)


@project.command("members")
def list_members(name: ProjectArgument, *, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List who has a role in a project."""
    with connect(url) as client:
        _show(client.access.project(name)["members"], ("user", "role"), as_json=as_json)


@project.command("quota")
def set_quota(
    name: ProjectArgument,
    *,
    slots: Annotated[
        str | None, typer.Option(metavar="N|none", help="That its jobs may hold at the same time.")
    ] = None,
    queued: Annotated[str | None, typer.Option(metavar="N|none", help="Jobs that may wait in the queue.")] = None,
    priority: Annotated[str | None, typer.Option(metavar="N|none", help="That a job may have at most.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show what a project may use and what it uses; with options change it (admins of the service)."""
    given = {"max_slots": slots, "max_queued": queued, "max_priority": priority}
    changes = {limit: _read_limit(text) for limit, text in given.items() if text is not None}
    with connect(url) as client:
        found = client.access.update_project(name, quota=changes) if changes else client.access.project(name)
    if as_json:
        put_json({"quota": found["quota"], "use": found["use"]})
        return
    quota, use = found["quota"], found["use"]
    put(f"slots     {use['slots']} of {_shown(quota['max_slots'])}")
    put(f"queued    {use['queued']} of {_shown(quota['max_queued'])}")
    highest = quota["max_priority"]
    put("priority  any" if highest is None else f"priority  up to {highest}")


def _read_limit(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither a number nor `none`")
    return int(text)


def _shown(limit: int | None) -> str:
    return "any number" if limit is None else str(limit)


@project.command("grant")
def grant(
    name: ProjectArgument,
    member: UserArgument,
    role: Annotated[
        Literal["viewer", "editor", "admin"],
        typer.Argument(
            metavar="viewer|editor|admin", help="viewer: looks; editor: submits and changes, too; admin: grants, too."
        ),
    ],
    *,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Give a user a role in a project, in place of another one."""
    with connect(url) as client:
        granted = client.access.grant(name, member, role)
    tell(granted, f"{member} is {'a' if role == 'viewer' else 'an'} {role} of {name}.", as_json=as_json)


@project.command("withdraw")
def withdraw(
    name: ProjectArgument, member: UserArgument, *, as_json: JsonOption = False, url: UrlOption = None
) -> None:
    """Take a user's role in a project away."""
    with connect(url) as client:
        client.access.withdraw(name, member)
    tell({"project": name, "user": member}, f"{member} has no role in {name}.", as_json=as_json)


@user.command("add")
def add_user(
    name: UserArgument,
    *,
    is_admin: Annotated[bool, typer.Option("--admin", help="Of the whole service.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Make a user; `rubato token create NAME --user USER` makes the key."""
    with connect(url) as client:
        made = client.access.create_user(name, is_admin=is_admin)
    tell(made, f"Made the user {name}; `rubato token create laptop --user {name}` makes a token.", as_json=as_json)


@user.command("ls")
def list_users(*, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List all users."""
    with connect(url) as client:
        _show(client.access.users(), ("name", "is_admin", "created_at", "disabled_at"), as_json=as_json)


@user.command("set")
def set_user(
    name: UserArgument,
    *,
    is_admin: Annotated[bool, typer.Option("--admin/--no-admin", help="Whether an admin of the whole service.")],
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Make a user an admin of the service, or not any more."""
    with connect(url) as client:
        changed = client.access.update_user(name, is_admin=is_admin)
    tell(changed, f"{name} is {'an admin' if is_admin else 'no admin'} of the service.", as_json=as_json)


@user.command("disable")
def disable_user(
    name: UserArgument,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Let the user in again, as `rubato user enable`.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Shut a user out: tokens, sessions and streams end at once."""
    with connect(url) as client:
        changed = client.access.update_user(name, is_disabled=not undo)
    back = f"{name} may not come in any more; `rubato user enable {name}` lets them in again."
    tell(changed, f"{name} may come in again." if undo else back, as_json=as_json)


@user.command("enable")
def enable_user(name: UserArgument, *, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Let a user in again who was shut out: tokens that were not revoked are good again."""
    disable_user(name, undo=True, as_json=as_json, url=url)


def audit(
    *,
    actor: Annotated[str | None, typer.Option("--user", metavar="USER", help="Only what this user did.")] = None,
    action: Annotated[
        str | None, typer.Option(metavar="ACTION", help="Only this, such as job.submitted or token.revoked.")
    ] = None,
    job: Annotated[
        str | None, typer.Option(metavar="JOB", help="Only of this job: its name, or its id, also of a deleted one.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, newest first.")] = 50,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List what people changed, newest first (for admins)."""
    with connect(url) as client:
        # An id is not looked up: the trail keeps who deleted what.
        job_id = job if job is None or job.startswith("job_") else client.job(job).id
        found = list(client.access.audit(actor=actor, action=action, job_id=job_id, limit=limit))
    if as_json:
        put_json(found)
        return
    rows = [
        {
            "time": format_time(one["time"]),
            "user": one["actor"],
            "action": one["action"],
            "job": one["job_id"],
            "detail": json.dumps(one["detail"], ensure_ascii=False),
        }
        for one in found
    ]
    put_table(rows, AUDIT)


AUDIT = ("time", "user", "action", "job", "detail")


def _show(rows: list[dict[str, Any]], columns: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        put_json(rows)
    else:
        put_table(rows, columns)
