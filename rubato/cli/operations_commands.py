"""`rubato worker`, `rubato node`: what operators do to single workers and nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rubato.cli.exits import ExitCode
from rubato.cli.follow import detachable, wait_while
from rubato.cli.options import JsonOption, TimeoutOption, UnfinishedJobArgument, UrlOption, connect, timeout_of_wait
from rubato.cli.output import note, put, put_json, stdout_console, terminal_columns
from rubato.cli.render import node_table, say_status, worker_table
from rubato.errors import ApiNotFound
from rubato.wire.status import Status
from rubato.wire.units import plural

if TYPE_CHECKING:
    from rubato.client import Client

worker = typer.Typer(
    name="worker",
    help="Drain, kill and look into single workers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
node = typer.Typer(
    name="node",
    help="Cordon, drain and uncordon a node; `nodes` lists them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Id of a worker (w1.2), or its present rank.")]
NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="Id of a node or the beginning of it, its address or host name.")
]
ClusterOption = Annotated[str, typer.Option("--cluster", help="Id of the cluster.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until it is done.")]


@worker.command("ls")
def list_workers(job: UnfinishedJobArgument, *, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List the workers of a job."""
    with connect(url) as client:
        found = client.workers(job)
    if as_json:
        put_json([one.raw for one in found])
    elif found:
        stdout_console().print(worker_table(found, terminal_columns()), soft_wrap=True)
    else:
        note("No workers.")


@worker.command("drain")
def drain_worker(
    job: UnfinishedJobArgument,
    name: WorkerArgument,
    *,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Let a worker leave between two steps; another one takes its place. To have fewer workers, scale."""
    timeout_s = timeout_of_wait(timeout, wait=wait)
    with connect(url) as client:
        _act(client, client.operations.drain_worker, job, name, wait=wait, timeout_s=timeout_s, as_json=as_json)


@worker.command("kill")
def kill_worker(
    job: UnfinishedJobArgument,
    name: WorkerArgument,
    *,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """End a worker with SIGKILL; the job recovers as from any loss, and starts another one."""
    timeout_s = timeout_of_wait(timeout, wait=wait)
    with connect(url) as client:
        _act(client, client.operations.kill_worker, job, name, wait=wait, timeout_s=timeout_s, as_json=as_json)


def _act(
    client: Client,
    ask: Callable[..., dict[str, Any]],
    job: str,
    name: str,
    *,
    wait: bool,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    worker_id = find_worker(client, job, name)
    action = ask(job, worker_id)
    if wait:
        with detachable(f"`rubato worker ls {job}` shows whether {worker_id} is there"):
            action = wait_while("pending", action, lambda s: ask(job, worker_id, wait_s=s), timeout_s=timeout_s)
    _tell(action, was_waited_for=wait, as_json=as_json)


@worker.command("stack")
def show_stack(
    job: UnfinishedJobArgument, name: WorkerArgument, *, as_json: JsonOption = False, url: UrlOption = None
) -> None:
    """Print where the threads of a worker are right now; training goes on."""
    with connect(url) as client:
        worker_id = find_worker(client, job, name)
        text = client.operations.stack(job, worker_id)
        if text is None:
            note(f"{worker_id} has not answered yet; the same command asks again.")
            raise typer.Exit(ExitCode.NOT_FINISHED)
        put_json({"worker_id": worker_id, "stack": text}) if as_json else put(text.rstrip("\n"))


def _tell(action: dict[str, Any], *, was_waited_for: bool, as_json: bool) -> None:
    is_late = was_waited_for and action["state"] == "pending"
    if as_json:
        put_json(action)
    elif is_late:
        note(f"{action['worker_id']} was asked to {_VERBS[action['kind']]}, and has not yet.")
    elif action["state"] == "pending":
        note(f"Asked {action['worker_id']} to {_VERBS[action['kind']]}; --wait waits for it.")
    else:
        note(f"{action['state']}: {action['message']}.")
    if action["state"] in ("gone", "failed", "withdrawn"):
        raise typer.Exit(ExitCode.ERROR)
    if is_late:
        raise typer.Exit(ExitCode.NOT_FINISHED)


_VERBS = {"drain": "leave", "kill": "die"}


def find_worker(client: Client, job: str, name: str) -> str:
    """The id of a worker that is named by id or by present rank. An id never means another worker later; a rank may.

    Raises:
        ApiNotFound: no worker has this rank; says so where none trains at all.
    """
    if not name.isdigit():
        return name
    ranks = {one.rank: one.worker_id for one in client.workers(job) if one.rank is not None}
    if int(name) not in ranks:
        found = client.job(job)
        is_why = not ranks and found.status != Status.RUNNING
        advice = say_status(found) if is_why else f"see `rubato worker ls {job}`"
        raise ApiNotFound(f"no worker of {job} has rank {name} now: {advice}", status=404)
    note(f"Rank {name} is {ranks[int(name)]}.")
    return ranks[int(name)]


# --- nodes ------------------------------------------------------------------------------------------------------------


@node.command("ls")
@node.command("list", hidden=True)  # what it was called before
def list_nodes(*, cluster: ClusterOption = "default", as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List the nodes of a cluster, with what runs there."""
    with connect(url) as client:
        found = client.operations.nodes(cluster)
    if as_json:
        put_json(found)
    elif found:
        stdout_console().print(node_table(found, terminal_columns()), soft_wrap=True)
    else:
        note("No nodes.")


def nodes(*, cluster: ClusterOption = "default", as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List nodes, with what runs there: short for `node ls`."""
    list_nodes(cluster=cluster, as_json=as_json, url=url)


@node.command("cordon")
def cordon(
    name: NodeArgument, *, cluster: ClusterOption = "default", as_json: JsonOption = False, url: UrlOption = None
) -> None:
    """Give a node no new workers; those that are there stay."""
    with connect(url) as client:
        _tell_node(client.operations.cordon(find_node(client, cluster, name)), as_json=as_json)


@node.command("uncordon")
def uncordon(
    name: NodeArgument, *, cluster: ClusterOption = "default", as_json: JsonOption = False, url: UrlOption = None
) -> None:
    """Let a node have workers again; a drain that is under way ends."""
    with connect(url) as client:
        _tell_node(client.operations.uncordon(find_node(client, cluster, name)), as_json=as_json)


@node.command("drain")
def drain_node(
    name: NodeArgument,
    *,
    cluster: ClusterOption = "default",
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Take a node out of service: its workers are replaced elsewhere where there is room, and leave."""
    timeout_s = timeout_of_wait(timeout, wait=wait)
    with connect(url) as client:
        node_id = find_node(client, cluster, name)
        found = client.operations.drain_node(node_id)
        left = found["workers_left"]

        def look(reply: dict[str, Any]) -> None:
            nonlocal left
            if reply["state"] == "draining" and reply["workers_left"] != left:
                left = reply["workers_left"]
                note(f"{left} left.")

        if wait:
            with detachable(
                f"the drain stands; `rubato node drain {name} --wait` waits on, `rubato node ls` looks once"
            ):
                found = wait_while(
                    "draining",
                    found,
                    lambda s: client.operations.drain_node(node_id, wait_s=s),
                    timeout_s=timeout_s,
                    on_look=look,
                )
        _tell_node(found, as_json=as_json)
        if wait and found["state"] == "draining":
            raise typer.Exit(ExitCode.NOT_FINISHED)


def _tell_node(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        put_json(found)
        return
    count = found["workers_left"]
    left = f", {plural(count, 'worker')} there" if count else ""
    note(f"{found['hostname'] or found['address']} is {found['state']}{left}.")


def find_node(client: Client, cluster: str, name: str) -> str:
    """The id of the one node that is named so.

    Raises:
        typer.BadParameter: none is, or several are.
    """
    nodes = client.operations.nodes(cluster)
    exact = [one for one in nodes if name in (one["node_id"], one["hostname"], one["address"])]
    found = exact or [one for one in nodes if one["node_id"].startswith(name)]
    if len(found) != 1:
        what = "no node" if not found else f"{len(found)} nodes"
        raise typer.BadParameter(f"{what} of {cluster} called {name!r}; see `rubato node ls`")
    return str(found[0]["node_id"])
