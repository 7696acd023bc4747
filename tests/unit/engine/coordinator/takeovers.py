"""Jobs whose controllers take over from each other amid whatever else happens: as many as one likes, by number."""

from __future__ import annotations

import random

from rubato.engine.coordinator import Wish
from tests.unit.engine.coordinator.actors import Worker
from tests.unit.engine.coordinator.controllers import Fate
from tests.unit.engine.coordinator.observed import DEAF_S, ENDLESS, MOST_WORKERS, PACES, Observed

ENOUGH = 400
"""So many are played by CI."""
BEFORE = ("scale", "scale", "die", "drain", "checkpoint", "nothing")
MEANWHILE = (
    *("die", "die", "scale", "differ", "wake", "rivals", "rivals", "rivals"),
    *("end", "lead", "program", "late", "storage", "time", "parts", "parts", "rows"),
)


def play(number: int) -> Observed:
    """One job, up to where all is as it should be again, or it has come to its end."""
    chance = random.Random(number)
    steps = chance.choice((ENDLESS, chance.randint(4, 12)))
    cluster = Observed(chance, workers=chance.randint(1, 4), spares=chance.choice((0, 0, 1)), total_steps=steps)
    if chance.random() < 0.9:
        first = chance.randint(1, 4)
        cluster.run(lambda: cluster.coordinator.job.step >= first)
    for _ in range(chance.randint(1, 3)):
        happen(cluster, chance, chance.choice(BEFORE))
        wander(cluster, chance.randint(0, 60))
        if cluster.outcome is not None:
            break
        is_cut_off, pace = chance.random() < 0.3, chance.choice(PACES)
        cluster.take_over(chance.choice(list(Fate)), deaf_s=chance.choice(DEAF_S), is_cut_off=is_cut_off, pace=pace)
        for _ in range(chance.randint(1, 5)):
            wander(cluster, chance.randint(1, 40))
            if cluster.outcome is None:
                happen(cluster, chance, chance.choice(MEANWHILE))
    if chance.random() < 0.3:
        cluster.cancel(force=chance.random() < 0.5)
    else:
        cluster.settle()
    return cluster


def wander(cluster: Observed, actions: int) -> None:
    """Whatever comes next."""
    for _ in range(actions):
        cluster.advance()
        cluster.look()


def happen(cluster: Observed, chance: random.Random, what: str) -> None:
    """Something that nobody expected."""
    living, superseded = cluster.living, cluster.superseded
    match what:
        case "die" if living:
            cluster.die(chance.choice(living))
        case "scale":
            cluster.ask(workers=chance.randint(1, MOST_WORKERS))
        case "drain" if living:
            cluster.act("drain", f"w{chance.choice(living).incarnation}")
        case "checkpoint":
            cluster.ask(checkpoint_request=cluster.wish.checkpoint_request + 1)
        case "differ" if odd := [one for one in living if one.step > 2]:
            cluster.differ(chance.choice(odd))
        case "wake" if superseded:
            cluster.wake(chance.choice(superseded), chance.choice(DEAF_S))
        case "rivals":
            cluster.ask(workers=chance.randint(1, MOST_WORKERS))
            for one in superseded:
                if one.leads:
                    cluster.handle(Wish("run", chance.randint(1, MOST_WORKERS)), one)
        case "end" if superseded:
            cluster.end(chance.choice(superseded))
        case "lead" if cluster.newest.calls and not cluster.newest.leads:
            cluster.lead(cluster.newest)
        case "program":
            cluster.changes_results = not cluster.changes_results
        case "late" if told := [one for one in living if one.inbox]:
            cluster.deliver_late()
            cluster.late += [(one, one.inbox[-1]) for one in told]
        case "storage":
            cluster.may_commit = not cluster.may_commit
        case "parts":
            cluster.writes = chance.choice(("well", "fail", "fail", "hang"))
        case "rows":
            cluster.takes_rows = not cluster.takes_rows
        case "time":
            cluster.now += chance.choice((1.0, 20.0))


def play_beside(number: int) -> Observed:
    """A controller that is cut off from the service loses its workers to its successor, and begins the job anew."""
    cluster = Observed(random.Random(number), workers=2, spares=0)
    cluster.run(lambda: cluster.coordinator.job.step >= 3)
    before, successor = cluster.leader, cluster.take_over(Fate.LIVES, deaf_s=1e9, is_cut_off=True)
    cluster.run(lambda: cluster.leader is successor)
    for worker in cluster.living:
        cluster.die(worker)

    def train(attempt: int) -> list[Worker]:
        return [one for one in cluster.workers.values() if one.alive and one.attempt == attempt and one.step > 2]

    cluster.run(lambda: len(train(before.attempt)) == 2 and len(train(successor.attempt)) == 2)
    beside = train(before.attempt)
    for attempt in (before.attempt, successor.attempt):
        cluster.die(train(attempt)[0])  # what is left will be repaired
    cluster.take_over(Fate.GONE)
    cluster.run(lambda: cluster.leader is cluster.newest)
    wander(cluster, 50)
    assert not any(one.alive for one in beside)
    cluster.settle()
    return cluster
