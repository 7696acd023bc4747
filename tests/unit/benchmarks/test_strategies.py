"""How exchanges on slow links are told; nothing is measured here."""

from __future__ import annotations

from benchmarks.strategies import PROFILE, STRATEGIES, Emulated, Seen, tables
from rubato.planner.methods import exchange_s
from rubato.planner.options import name_of

WORKERS = 4
COMPUTED_S, PASSED_S = 0.5, 0.25


def seen_on(link: Emulated | None, times: float) -> dict[str, Seen]:
    """The messages take what the link adds so many times; what is computed, nothing."""
    told = {}
    for one in STRATEGIES:
        added = exchange_s(one, PROFILE, WORKERS, link.as_planned) if link else 0.0
        messages_s = times * (PASSED_S + added)
        told[name_of(one)] = Seen(messages_s + (0.0 if link else COMPUTED_S), messages_s, 1000.0)
    return told


def test_what_is_computed_is_told_apart_from_the_messages() -> None:
    links = [Emulated(mbit, latency) for latency in (0, 5) for mbit in (10, 100)]
    text = tables(seen_on(None, 1.0), {link: seen_on(link, 1.25) for link in links}, WORKERS)
    for latency in (0, 5):
        assert text.count(f"Latency {latency} ms one way:") == 1
    heads = "| sent, kB | no limit | 10 Mb/s: measured, predicted | 100 Mb/s: measured, predicted |"
    assert text.count(f"| exchange {heads}") == text.count(f"| its messages alone {heads}") == 2
    assert all(text.count(f"| `{name_of(one)}` | 1 | ") == 4 for one in STRATEGIES)
    apart, whole = text.rsplit("\n\n", 1)[1].split("; with what is computed ")
    assert apart == "Measured against predicted: the messages 1.25 times apart at the median, 1.25 at most"
    assert whole != "1.25 times apart at the median, 1.25 at most."
