"""Workers that die before they ever train: when to try again, and when to give up. Pure.

Those that were started together and die count as one *round*: a lost node takes several at once, and says no more than
the loss of one.

    killed from outside   SIGKILL, a lost node, no memory: tried again, `retries` times before anybody has trained, and
                          for as long as others train
    by itself             SIGSEGV, an exit without a word, refused by the others: after three rounds it is the program

A worker that has just begun to train and is killed for memory counts, too: each time it costs the others a recovery,
and the third in a row is not replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_RETRIES = 2
"""However few restarts the user allows: a kill before the first step may be anybody's bad luck."""
OWN_ROUNDS = 3
"""Rounds in which a worker died by itself before the program is blamed."""
EARLY_S = 30.0
"""A worker that is killed for memory so soon after it began to train says that its host has too little for another."""
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
NEVER = float("inf")


@dataclass(frozen=True)
class Death:
    """The end of a worker that had not trained yet."""

    number: int
    """Of the worker: they are counted as they are started."""
    is_own: bool
    """Whether it ended by itself, or was ended for what it is; else something outside did it."""
    how: str
    """In words: `was killed by SIGKILL`."""


@dataclass(frozen=True)
class Retry:
    """Start others after a wait."""

    wait_s: float
    because: str


@dataclass(frozen=True)
class GiveUp:
    """Start no others."""

    is_own: bool
    because: str

    @property
    def advice(self) -> str:
        """What to do."""
        if self.is_own:
            return "Look at the last output; a native crash (SIGSEGV, SIGABRT) or os._exit leaves no traceback."
        return "Look at what ends processes on their hosts: too little memory, a lost node, or the program itself."


def decide_start(rounds: int, own_rounds: int, death: Death, *, retries: int, is_training: bool) -> Retry | GiveUp:
    """What to do after a round.

    Args:
        rounds: in a row, with this one.
        own_rounds: of these, the ones in which a worker ended by itself.
        death: the last one.
        retries: how often to try again, where nobody trains.
        is_training: whether others train, whom it costs nothing.
    """
    times = "once" if rounds == 1 else f"{rounds} times in a row"
    because = f"workers died {times} before they could train; the last one {death.how}"
    if own_rounds >= OWN_ROUNDS or (rounds > retries and not is_training):
        return GiveUp(own_rounds >= OWN_ROUNDS, because)
    return Retry(wait_s(rounds, LONGEST_WAIT_S), because)


def wait_s(times: int, longest_s: float) -> float:
    """Before the next try of what failed so many times in a row."""
    return min(longest_s, FIRST_WAIT_S * 2.0 ** min(times - 1, 16))  # far beyond the longest wait


class Starting:
    """Counts the rounds, and says from when on workers may be started.

    Args:    retries: how often the user has a job restarted.
    """

    def __init__(self, retries: int) -> None:
        self._retries = max(LEAST_RETRIES, retries)
        self._newest = 0
        """The last worker that was started before the present round was counted."""
        self.forget()

    def forget(self) -> None:
        """All begins anew: what was before says nothing any more."""
        self._rounds = self._own_rounds = 0
        self._early = self._newest_early = 0
        self._is_own_counted = False
        self.retry_at = 0.0
        """No worker is started before, in seconds of the caller's clock."""
        self.given_up = ""
        """Why no more are started; empty: they are."""

    def on_entered(self) -> None:
        """A new worker made it; while others did who were killed at once, that says nothing yet."""
        if not self._early:
            self.forget()

    def on_lasting(self, number: int) -> None:
        """A worker has trained for a while."""
        if self._early and number > self._newest_early:
            self.forget()

    def on_early_death(self, death: Death, now: float, *, is_training: bool) -> GiveUp | None:
        """A worker was killed for memory soon after it had begun to train; the decision where no others are started."""
        self._early, self._newest_early = self._early + 1, max(self._newest_early, death.number)
        if self._early < OWN_ROUNDS or not is_training:
            self.retry_at = max(self.retry_at, now + wait_s(self._early, LONGEST_WAIT_S))
            return None
        because = f"workers died {self._early} times in a row soon after they began to train; the last one {death.how}"
        self.retry_at, self.given_up = NEVER, because
        return GiveUp(is_own=False, because=because)

    def may_start(self, now: float) -> bool:
        """Whether workers may be started."""
        return now >= self.retry_at

    def on_death(self, death: Death, newest: int, now: float, *, is_training: bool) -> Retry | GiveUp | None:
        """A worker died before it trained.

        Args:    newest: the number of the last worker that was started.
        Returns: the decision; None: it belongs to a round for which one was taken.
        """
        is_new = death.number > self._newest or not self._rounds
        if not is_new and (not death.is_own or self._is_own_counted):
            return None
        if is_new:
            self._rounds += 1
            self._newest = newest
            self._is_own_counted = False
        if death.is_own:
            self._own_rounds += 1
            self._is_own_counted = True
        decision = decide_start(self._rounds, self._own_rounds, death, retries=self._retries, is_training=is_training)
        if isinstance(decision, GiveUp):
            self.retry_at, self.given_up = NEVER, decision.because
        elif is_new:
            self.retry_at = now + decision.wait_s
        return decision
