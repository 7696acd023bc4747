"""`rubato worker`, `rubato node`: what operators do to single workers and nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rubato.cli.exits import ExitCode
from rubato.cli.options import JobArgument, JsonOption, UrlOption, connect
from rubato.cli.output import note, put, put_json, stdout_console, terminal_columns
from rubato.cli.render import node_table, plural, worker_table

if TYPE_CHECKING:
    from rubato.client import Client

worker = typer.Typer(
    name="worker",
    help="Drain, kill and look into single workers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
node = typer.Typer(
    name="node", help="List nodes, and take them out of service.", no_args_is_help=True, rich_markup_mode=None
)
WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Id of a worker (w1.2), or its present rank.")]
NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="Id of a node or the beginning of it, its address or host name.")
]
ClusterOption = Annotated[str, typer.Option("--cluster", help="Id of the cluster.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until it is done.")]
WAIT_S = 25.0


@worker.command("ls")
def list_workers(job: JobArgument, *, as_json: JsonOption = False, url: UrlOption = None) -> None:
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
    job: JobArgument,
    name: WorkerArgument,
    *,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Let a worker leave between two steps; another one takes its place. To have fewer workers, scale."""
    with connect(url) as client:
        worker_id = find_worker(client, job, name)
        action = client.operations.drain_worker(job, worker_id)
        while wait and action["state"] == "pending":
            action = client.operations.drain_worker(job, worker_id, wait_s=WAIT_S)
        _tell(action, as_json=as_json)


@worker.command("kill")
def kill_worker(
    job: JobArgument,
    name: WorkerArgument,
    *,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """End a worker with SIGKILL; the job recovers as from any loss, and starts another one."""
    with connect(url) as client:
        worker_id = find_worker(client, job, name)
        action = client.operations.kill_worker(job, worker_id)
        while wait and action["state"] == "pending":
            action = client.operations.kill_worker(job, worker_id, wait_s=WAIT_S)
        _tell(action, as_json=as_json)


@worker.command("stack")
def show_stack(job: JobArgument, name: WorkerArgument, *, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Print where the threads of a worker are right now; training goes on."""
    with connect(url) as client:
        worker_id = find_worker(client, job, name)
        text = client.operations.stack(job, worker_id)
        if text is None:
            note(f"{worker_id} has not answered yet; the same command asks again.")
            raise typer.Exit(ExitCode.NOT_FINISHED)
        put_json({"worker_id": worker_id, "stack": text}) if as_json else put(text.rstrip("\n"))


def _tell(action: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        put_json(action)
    elif action["state"] == "pending":
        note(f"Asked {action['worker_id']} to {_VERBS[action['kind']]}; --wait waits for it.")
    else:
        note(f"{action['state']}: {action['message']}.")
    if action["state"] in ("gone", "failed", "withdrawn"):
        raise typer.Exit(ExitCode.ERROR)


_VERBS = {"drain": "leave", "kill": "die"}


def find_worker(client: Client, job: str, name: str) -> str:
    """The id of a worker that is named by id or by present rank. An id never means another worker later; a rank may.

    Raises:
        typer.BadParameter: no worker has this rank.
    """
    if not name.isdigit():
        return name
    ranks = {one.rank: one.worker_id for one in client.workers(job) if one.rank is not None}
    if int(name) not in ranks:
        raise typer.BadParameter(f"no worker of {job} has rank {name} now; see `rubato worker ls {job}`")
    note(f"Rank {name} is {ranks[int(name)]}.")
    return ranks[int(name)]


# --- nodes ------------------------------------------------------------------------------------------------------------


@node.command("list")
def list_nodes(*, cluster: ClusterOption = "default", as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List the nodes of a cluster, with what runs there."""
    with connect(url) as client:
        found = client.operations.nodes(cluster)
    if as_json:
        put_json(found)
    elif found:
        stdout_console().print(node_table(found), soft_wrap=True)
    else:
        note("No nodes.")


def nodes(*, cluster: ClusterOption = "default", as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List the nodes of a cluster, with what runs there; `rubato node` takes them out of service."""
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
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Take a node out of service: its workers are replaced elsewhere where there is room, and leave."""
    with connect(url) as client:
        node_id = find_node(client, cluster, name)
        found = client.operations.drain_node(node_id)
        left = found["workers_left"]
        while wait and found["state"] == "draining":
            if found["workers_left"] != left:
                left = found["workers_left"]
                note(f"{left} left.")
            asked_at = time.monotonic()
            found = client.operations.drain_node(node_id, wait_s=WAIT_S)
            if time.monotonic() - asked_at < 0.5:
                time.sleep(0.5)  # a service that does not wait must not be asked in a tight loop
        _tell_node(found, as_json=as_json)


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
        raise typer.BadParameter(f"{what} of {cluster} called {name!r}; see `rubato node list`")
    return str(found[0]["node_id"])
