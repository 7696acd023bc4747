"""One worker that exchanges vectors by one strategy after the other, and says what it took and what it sent.

python exchanges.py RANK WORLD HOST:PORT INTERFACE REQUEST

REQUEST is JSON: `shapes` of the parameters, `rounds`, `aggregations` by name, by rank the `hosts` (equal for those on
one machine, which share its interface), and how many `probes` of the links come first. Rank 0 opens the store. The
answer is one line of JSON: what was probed, under the empty name; and by name the fewest bytes that left the interface
in a round, headers aside, those that the strategy announced, the seconds of each round, a digest of what all took for
the sum in the last one, and bytes and seconds of its messages alone, which are as many between the same ranks in the
same order, with nothing computed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch

from rubato.checkpoint.digest import digest64
from rubato.engine.aggregation import compressor_of
from rubato.engine.comm import Communicator, dist, form
from rubato.strategies.layout import Layout, layout_of
from rubato.strategies.peers import Collectives
from rubato.strategies.probe import probe
from rubato.wire.aggregation import AggregationSpec
from rubato.wire.codec import from_json
from rubato.wire.worker import GenerationRecord, Member, Origin

Messages = Sequence[tuple[int, torch.Tensor]]
"""By the rank on the other side."""
WARM = 1
HEADER_BYTES = 14 + 20 + 32
"""Of Ethernet, of IPv4, and of TCP with its timestamps."""
CPU = torch.device("cpu")


def main() -> None:
    """Play the part of one rank."""
    rank, world, address, interface = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    request = json.loads(sys.argv[5])
    torch.set_num_threads(1)
    host, port = address.rsplit(":", 1)
    stores = [dist.TCPStore(host, int(port), is_master=True, wait_for_workers=False)] if rank == 0 else []
    members = tuple(Member(f"w{one}", f"{one}.1") for one in range(world))
    comms: list[Communicator] = []

    def connect() -> Communicator:
        """As a job's workers are: by connections that have carried nothing of another strategy's."""
        record = GenerationRecord(1, len(comms) + 1, members, (0,) * world, address, Origin("fresh"), "start", 0)
        here = request["hosts"][rank]
        comms.append(form(record, rank, job_id="exchanges", host=here, device=CPU, is_revoked=lambda: False))
        return comms[-1]

    layout = layout_of_shapes(request["shapes"])
    vector = vector_of(rank, layout)
    comm = connect()
    answer: dict[str, Any] = {"": [probe(comm, comm.hosts) for _ in range(request["probes"])]}
    for name, data in request["aggregations"].items():
        spec = from_json(AggregationSpec, data, strict=True)
        answer[name] = measure(connect(), layout, vector, spec, request["rounds"], interface)
    print(json.dumps(answer), flush=True)
    wait(comm)
    stores.clear()  # nobody asks any more
    os._exit(0)  # the threads of groups end no other way


def layout_of_shapes(shapes: Sequence[Sequence[int]]) -> Layout:
    """Of parameters that lie one behind the other."""
    parameters, start = [], 0
    for number, shape in enumerate(shapes):
        parameters.append((str(number), start, tuple(shape)))
        start += prod(shape)
    return layout_of(start, parameters)


def vector_of(rank: int, layout: Layout) -> torch.Tensor:
    """What a rank has to tell, in every round."""
    return torch.randn(layout.length, generator=torch.Generator().manual_seed(rank))


def measure(
    comm: Communicator, layout: Layout, vector: torch.Tensor, spec: AggregationSpec, rounds: int, interface: str
) -> dict[str, Any]:
    """Some rounds of one strategy, and as many of its messages alone."""
    compressor = compressor_of(spec, layout, spec.compression.density, comm.hosts, seed=0)
    noted, state, total = Noted(comm), compressor.start(vector), vector

    def step(number: int, through: Collectives = comm) -> None:
        nonlocal total, state
        total, state = compressor.exchange(through, vector, state, number)

    seconds, sent = timed(comm, rounds, interface, step)
    digest = digest64([total])
    step(WARM + rounds, noted)
    alone, sent_alone = timed(comm, rounds, interface, lambda number: noted.again())
    return {
        "sent": sent,
        "announced": compressor.sent_bytes(comm.rank, comm.world, vector.element_size()),
        "seconds": seconds,
        "messages_sent": sent_alone,
        "messages_seconds": alone,
        "digest": digest,
    }


def timed(comm: Communicator, rounds: int, interface: str, step: Callable[[int], None]) -> tuple[Sequence[float], int]:
    """Seconds of each round, and the fewest bytes that left the interface in one: TCP sends some twice now and then."""
    seconds, sent = [], []
    for number in range(WARM + rounds):
        wait(comm)
        before, began = sent_bytes(interface), time.perf_counter()
        step(number)
        seconds.append(time.perf_counter() - began)
        wait(comm)  # what others still acknowledge is of this round
        sent.append(sent_bytes(interface) - before)
    return seconds[WARM:], min(sent[WARM:])


class Noted:
    """The collectives of a worker, which note what passes through them."""

    def __init__(self, comm: Communicator) -> None:
        self.rank, self.world, self.device = comm.rank, comm.world, comm.device
        self._comm = comm
        self._passed: list[tuple[Messages, Messages] | torch.Tensor | None] = []

    def pass_messages(self, received: Messages, sent: Messages) -> None:
        """See `rubato.strategies.peers.Collectives`."""
        self._comm.pass_messages(received, sent)
        self._passed.append((blank(received), blank(sent)))

    def confirm(self) -> None:
        """Likewise."""
        self._comm.confirm()
        self._passed.append(None)

    def all_reduce(self, total: torch.Tensor) -> None:
        """Likewise."""
        self._comm.all_reduce(total)
        self._passed.append(torch.zeros_like(total))

    def again(self) -> None:
        """The same messages, in the same order."""
        for messages in self._passed:
            if messages is None:
                self._comm.confirm()
            elif isinstance(messages, torch.Tensor):
                self._comm.all_reduce(messages)
            else:
                self._comm.pass_messages(*messages)


def blank(messages: Messages) -> Messages:
    """As long, of zeros."""
    return [(rank, torch.zeros_like(one)) for rank, one in messages]


def wait(comm: Communicator) -> None:
    """Until all are here: 8 bytes to each."""
    table = torch.zeros(comm.world, dtype=torch.int64)
    comm.all_gather(table, table[:1].clone())


def sent_bytes(interface: str) -> int:
    """Bytes that left this namespace since it is there, without the headers of their packets.

    A message has more packets where its reader is slow, and more acknowledgements, which are nothing but headers.
    """
    packets, of_all = (
        int(Path(f"/sys/class/net/{interface}/statistics/{count}").read_text()) for count in ("tx_packets", "tx_bytes")
    )
    return of_all - HEADER_BYTES * packets


if __name__ == "__main__":
    main()
