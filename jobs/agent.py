"""The agent: asks the service what should run on this Ray cluster, and makes it so. `python -m jobs.agent`.

It holds no state and is made to be restarted: on any Ray error it exits, and whoever keeps it starts it again. Killing
it touches nothing that runs.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from jobs.cluster_view import observe_actors, observe_nodes
from jobs.controller import JobController, has_ended
from jobs.names import NAMESPACE, ActorName, controller_name
from jobs.service_link import NotWanted, Refused, ServiceLink, Unreachable
from jobs.sweep import Sweep
from rubato.errors import RubatoError
from rubato.home import Home
from rubato.wire import WIRE_VERSION
from rubato.wire.cluster import ControllerSeen, JobToRun, ProcessIdentity, SyncReply, SyncRequest

SYNC_WAIT_S = 5.0
"""Also how often the nodes are looked at."""
SETTLING_WAIT_S = 0.5
"""The same while a wanted controller has no attempt, and for a while after the list has changed: the controller found
may just be leaving (a pause and a resume close together), and must be made anew."""
SETTLING_S = 8.0
RETRY_FIRST_S = 0.2
RETRY_MAX_S = 5.0
IDENTITY_S = 2.0
TOKEN_WAIT_S = 30.0
EXIT_RAY = 1
EXIT_CONFIG = 2


class Agent:
    """One agent process on one cluster.

    Args:
        agent_id: of this process, or of a place where there is never more than one.
    """

    def __init__(self, link: ServiceLink, cluster_id: str, url: str, agent_id: str) -> None:
        self._link = link
        self._cluster_id = cluster_id
        self._url = url
        self._agent_id = agent_id
        self._version = 0
        self._wanted: list[str] = []
        self._changed_at = time.monotonic()
        self._sweep = Sweep()
        self._known: dict[str, tuple[ProcessIdentity, int]] = {}
        """Process and attempt of each controller, as last told by it."""
        self._ended: dict[str, int] = {}
        """Attempts whose processes are gone, until the service has heard it."""

    def run(self) -> None:
        """Sync for ever. Leaves with the first Ray error."""
        pause_s, is_away = RETRY_FIRST_S, False
        while True:
            actors = observe_actors()
            request = SyncRequest(
                agent_id=self._agent_id,
                wire_version=WIRE_VERSION,
                nodes=observe_nodes(),
                controllers=self._observe_controllers(actors),
                after=self._version,
                wait=SETTLING_WAIT_S if self._is_settling() else SYNC_WAIT_S,
            )
            try:
                reply = self._link.sync(self._cluster_id, request)
            except Unreachable as error:
                if not is_away:
                    say(f"no word from the service at {self._url} ({error}); asking until there is one")
                is_away = True
                time.sleep(pause_s * random.uniform(0.8, 1.2))
                pause_s = min(RETRY_MAX_S, pause_s * 2)
                continue
            if is_away:
                say("the service answers again")
            pause_s, is_away = RETRY_FIRST_S, False
            if reply.acting:
                self._ended.clear()
                self._act(reply)
            else:
                time.sleep(SYNC_WAIT_S)  # another agent acts; look again when its lease may have run out

    def _is_settling(self) -> bool:
        is_recent = time.monotonic() - self._changed_at < SETTLING_S
        return bool(self._wanted) and (is_recent or not self._known.keys() >= set(self._wanted))

    def _act(self, reply: SyncReply) -> None:
        for job in reply.run:
            self._ensure_controller(job)
        if reply.version != self._version:
            self._changed_at = time.monotonic()
        self._version = reply.version
        self._wanted = [job.job_id for job in reply.run]
        for name in self._sweep.decide(self._wanted, observe_actors(), time.monotonic()):
            say(f"ending {name}: its job is not to run here")
            end_actor(name)

    def _ensure_controller(self, job: JobToRun) -> None:
        """Get or create; a detached controller that lives is left alone."""
        actor: Any = ray.remote(JobController)
        actor.options(
            name=controller_name(job.job_id),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=4,
            num_cpus=0,
        ).remote(job.job_id, job.ticket, self._url)

    def _observe_controllers(self, actors: list[ActorName]) -> tuple[ControllerSeen, ...]:
        """Those that live; and of those that had told an attempt, whether its process is known to be gone."""
        alive = {name.job_id for name in actors if not name.incarnation}
        seen = [ControllerSeen(job_id, "alive") for job_id in sorted(alive)]
        ended = {job_id for job_id, (process, _) in self._known.items() if has_ended(process)}
        self._ended.update({job_id: self._known[job_id][1] for job_id in ended})
        seen += [ControllerSeen(job_id, "gone", attempt) for job_id, attempt in sorted(self._ended.items())]
        self._known = {job_id: self._known[job_id] for job_id in self._known.keys() & alive - ended}
        self._learn(alive - self._known.keys())
        return tuple(seen)

    def _learn(self, job_ids: set[str]) -> None:
        """Ask controllers who they are. One that does not answer is asked again at the next look."""
        calls: dict[Any, str] = {}
        for job_id in job_ids:
            try:
                handle: Any = ray.get_actor(controller_name(job_id), namespace=NAMESPACE)
            except ValueError:
                continue
            calls[handle.identity.remote()] = job_id
        if not calls:
            return
        done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=IDENTITY_S)
        for call in done:
            try:
                process, attempt = ray.get(call, timeout=IDENTITY_S)
            except (RayError, GetTimeoutError):
                continue
            if attempt:
                self._known[calls[call]] = (process, attempt)


def end_actor(name: ActorName) -> None:
    """End an actor for good; the supervisor's process takes its training process with it."""
    try:
        handle = ray.get_actor(str(name), namespace=NAMESPACE)
    except ValueError:
        return  # it ended since
    ray.kill(handle, no_restart=True)


def wait_for_token(home: Home, environment: dict[str, str], patience_s: float = TOKEN_WAIT_S) -> str:
    """The token, once a service that is only starting has written it; raises as `read_token` does."""
    deadline, is_told = time.monotonic() + patience_s, False
    while True:
        try:
            return read_token(home, environment)
        except RubatoError as error:
            if not isinstance(error.__cause__, FileNotFoundError) or time.monotonic() > deadline:
                raise
            if not is_told:
                say(f"{error}; waiting up to {patience_s:.0f} s for it")
            is_told = True
            time.sleep(RETRY_FIRST_S)


def read_token(home: Home, environment: dict[str, str]) -> str:
    """The token of role `cluster`, which the service writes at its first start.

    Raises:
        RubatoError: there is none to read.
    """
    path = Path(environment.get("RUBATO_CLUSTER_TOKEN_FILE") or home.path / "cluster-token")
    try:
        return path.read_text().strip()
    except OSError as error:
        raise RubatoError(
            f"cannot read the cluster token {path}: {error.strerror}; the service writes it at its first start, or "
            "name another file with RUBATO_CLUSTER_TOKEN_FILE"
        ) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent until Ray fails it."""
    parser = argparse.ArgumentParser(prog="python -m jobs.agent", description=__doc__)
    parser.add_argument("--url", required=True, help="address of the service")
    parser.add_argument("--ray-address", required=True, help="host:port of the Ray head")
    parser.add_argument("--cluster", default="default", help="id of this cluster")
    parser.add_argument(
        "--agent-id",
        default=secrets.token_hex(8),
        help="a name for the place that keeps the agent, where it never keeps two at once: the next agent of that name "
        "acts at once, any other one 15 s after the last word of the one before (default: a new name)",
    )
    options = parser.parse_args(arguments)
    try:
        token = wait_for_token(Home.from_environment(), dict(os.environ))
        # log_to_driver off: the workers' output goes to the service, not through here.
        ray.init(
            address=options.ray_address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
        say(f"cluster {options.cluster} at {options.ray_address}, service {options.url}")
        with ServiceLink(options.url, token) as link:
            Agent(link, options.cluster, options.url, options.agent_id).run()
    except (Refused, NotWanted, RubatoError) as error:
        say(str(error))
        return EXIT_CONFIG
    except (RayError, ConnectionError, RuntimeError) as error:
        say(f"Ray failed: {type(error).__name__}: {error}")
        return EXIT_RAY
    return 0


def say(text: str) -> None:
    """To the agent's log."""
    print(f"agent: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    # A Ray driver's atexit waits for the cluster: of no use where that is what failed.
    code = main()
    sys.stderr.flush()
    os._exit(code)
