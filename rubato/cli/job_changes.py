"""Commands that make another job of one, or none: update, clone, delete."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rubato.cli.local_runs import LocalRuns
from rubato.cli.options import (
    EndedArgument,
    JobArgument,
    JsonOption,
    UnfinishedJobArgument,
    UrlOption,
    connect,
    is_local_run,
    parse_assignments,
)
from rubato.cli.output import note, put_json, tell
from rubato.cli.specfile import apply_settings
from rubato.errors import UserError
from rubato.home import Home
from rubato.wire.settings import is_section, why_empty

LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="K=V", help="A label; K= takes it away; repeatable.")
]


def update(
    job: UnfinishedJobArgument,
    *,
    priority: Annotated[int | None, typer.Option(min=0, max=100, help="0 to 100, more is sooner.")] = None,
    label: LabelOption = None,
    minimum: Annotated[int | None, typer.Option("--min", min=1, help="Never fewer workers (workers.min).")] = None,
    maximum: Annotated[int | None, typer.Option("--max", min=1, help="Never more workers (workers.max).")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="K=V", help="Such as limits.queue_timeout=1h; K= takes a limit away; repeatable."
        ),
    ] = None,
    if_match: Annotated[
        str | None, typer.Option(metavar="ETAG", help="Refuse where somebody changed the job since (see `get --json`).")
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Change labels, bounds, limits or priority of a job. Training goes on meanwhile."""
    changes = read_changes(
        settings=parse_assignments(settings or [], "--set"),
        labels=parse_assignments(label or [], "--label"),
        priority=priority,
        minimum=minimum,
        maximum=maximum,
    )
    if not changes:
        raise typer.BadParameter("give at least one of --priority, --label, --min, --max and --set")
    with connect(url) as client:
        before = None if as_json else client.job(job)
        changed = client.update(job, changes, if_match=if_match)
        if before is None:
            put_json(changed.raw)
        else:
            bounds = f"{changed.min_workers} to {changed.max_workers} workers, {changed.desired_workers} wanted"
            is_same = before.etag is not None and before.etag == changed.etag
            what = "is that already, and nothing changed" if is_same else f"is changed ({', '.join(_paths(changes))})"
            note(f"{changed.name} {what}: {bounds}, priority {_priority_of(changed.spec)}.")


def read_changes(
    *,
    settings: dict[str, str],
    labels: dict[str, str],
    priority: int | None = None,
    minimum: int | None = None,
    maximum: int | None = None,
) -> dict[str, Any]:
    """A merge patch from the flags; an empty value takes away."""
    changes = apply_settings({}, {path: text or "null" for path, text in settings.items()})
    if labels:
        changes.setdefault("labels", {}).update({name: value or None for name, value in labels.items()})
    flags = (("scheduling", "priority", priority), ("workers", "min", minimum), ("workers", "max", maximum))
    for section, name, value in flags:
        if value is not None:
            changes.setdefault(section, {})[name] = value
    return changes


def clone(
    job: JobArgument,
    *,
    name: Annotated[str | None, typer.Option(help="Name of the new job. Default: the old one's with a number.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="K=V", help="A field of the spec, such as config.lr=0.01; repeatable."),
    ] = None,
    label: LabelOption = None,
    from_checkpoint: Annotated[
        str | None, typer.Option(metavar="ID|latest", help="Begin from a checkpoint instead of from the start.")
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Submit a job again, with other values where you say so. Its code is not uploaded again."""
    given = parse_assignments(settings or [], "--set")
    for path in (path for path, text in given.items() if not text):
        own = f"{path}= has no value: {path}='\"\"' is an empty text, {path}=null takes the job's own value away"
        raise typer.BadParameter(why_empty(path) if is_section(path) else own, param_hint="--set")
    overrides = read_changes(settings=given, labels=parse_assignments(label or [], "--label"))
    if name is not None:
        overrides["name"] = name
    with connect(url) as client:
        from rubato.cli.submit import announce

        announce(client.clone(job, overrides, from_checkpoint=from_checkpoint), client.url, as_json=as_json)


def delete(
    job: EndedArgument,
    *,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Leave its checkpoints on the storage.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Delete a job or run that has ended, with all that it wrote.

    Logs, metrics, events and checkpoints: there is no way back.
    Checkpoints that a `rubato run` kept elsewhere (--checkpoint-dir) stay.
    """
    if is_local_run(job):
        if keep_checkpoints:
            raise UserError(f"move the checkpoints of {job} away first: `rubato get {job}` tells their folder")
        name = LocalRuns(Home.from_environment()).delete(job)
        tell({"id": job, "name": name}, f"{name} ({job}) is deleted.", as_json=as_json)
        return
    with connect(url) as client:
        found = client.job(job)
        client.delete(found.id, keep_checkpoints=keep_checkpoints, if_match=found.etag)
    tell({"id": found.id, "name": found.name}, f"{found.name} ({found.id}) is deleted.", as_json=as_json)


def _priority_of(spec: dict[str, Any] | None) -> Any:
    return (spec or {}).get("scheduling", {}).get("priority", "?")


def _paths(changes: dict[str, Any], above: str = "") -> list[str]:
    """Which fields of the spec a patch is about: `workers.max`."""
    found: list[str] = []
    for name, value in changes.items():
        found += _paths(value, f"{above}{name}.") if isinstance(value, dict) else [f"{above}{name}"]
    return found
