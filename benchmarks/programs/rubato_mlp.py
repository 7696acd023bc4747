"""The workload under Rubato."""

from __future__ import annotations

import rubato
from benchmarks.programs import phases
from benchmarks.programs.workload import Figures, Network, Noise, Workload, mean_loss, sgd


def train(run: rubato.Run) -> None:
    job = Workload.from_json(run.config["workload"])
    figures = Figures(job)
    clock = phases.PhaseClock() if run.config.get("phases") else None
    if clock is not None:
        phases.install(clock)
    network = Network(job.width)
    optimizer = sgd(network)
    run.prepare(model=network, optimizer=optimizer, dataset=Noise())
    for step in run.steps():
        for x, y, ids in step:
            job.wait_for_device(len(ids))
            with phases.phase(clock, "forward, backward"):
                step.backward(mean_loss(network(x, ids), y))
        with phases.phase(clock, "optimizer"):
            optimizer.step()
        job.hold()
        figures.stepped()
        if clock is not None:
            clock.lap()
    if clock is not None:
        clock.write(job.folder)
    figures.ended(network, optimizer)


if __name__ == "__main__":
    rubato.main(train)
