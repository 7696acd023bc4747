"""Workers in network namespaces that exchange vectors by strategies, as `benchmarks/programs/exchanges.py` does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.network import Network

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "benchmarks" / "programs" / "exchanges.py"
PORT = 29_500
"""Of the store, in a namespace of its own."""


def exchange(
    net: Network,
    workers: int,
    aggregations: Mapping[str, Any],
    shapes: Sequence[Sequence[int]],
    rounds: int,
    *,
    machines: Sequence[int] | None = None,
    probes: int = 0,
    timeout_s: float = 200.0,
) -> list[dict[str, Any]]:
    """By rank, what each says of each strategy.

    Args:
        aggregations: by a name, as in a job spec.
        shapes: of the parameters.
        machines: by rank, the number of the namespace it is in; None: each has one of its own.
        probes: so often the links are measured first; what rank 0 finds is told under the empty name.
    """
    machines = machines or range(1, workers + 1)
    names = [net.address(number) for number in machines]
    request = {"shapes": shapes, "rounds": rounds, "aggregations": aggregations, "probes": probes, "hosts": names}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        processes = []
        for rank, machine in enumerate(machines):
            inside = ["ip", "netns", "exec", f"{net.name}-{machine}"]
            arguments = [str(rank), str(workers), f"{names[0]}:{PORT}", "eth", json.dumps(request)]
            process = subprocess.Popen(
                [*inside, sys.executable, "-P", str(PROGRAM), *arguments],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        answers = []
        for process in processes:
            out, err = process.communicate(timeout=timeout_s)
            assert process.returncode == 0, err
            answers.append(json.loads(out))
        return answers
