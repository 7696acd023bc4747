"""Takes the values of secrets out of what a job's programs said, before any of it is stored. Pure.

Known are the value itself, each of its lines, and the forms it takes in JSON, in Python's repr and in addresses. Other
encodings (base64, hex, one character at a time) are not: this is against accidents, not against a program that wants to
tell.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, quote_plus

from rubato.wire.cluster import ActionAnswer, EventReport, Failure, Report
from rubato.wire.events import EventKind

MIN_CHARS = 8
"""A shorter value would be found in half of all words; secrets of jobs have at least so many."""
MIN_PREFIX = 4
"""Of a line that was cut at its end, so many characters of a secret are taken for its beginning."""
WITHHELD = "[withheld: this job has secrets, and the service has not the key to tell them from the rest]"
_READ_BY_SERVICE = frozenset({EventKind.CHECKPOINT_COMMITTED, EventKind.CHECKPOINT_DELETED})
"""Kinds of events whose data hold no text but ids, hashes and names."""
_CUT = re.compile(r" \.\.\. \([0-9]+ bytes cut\)$")


class Redactor:
    """Replaces secrets by their names.

    Args:
        values: by name, each with all values that the job's processes may hold.
        is_blind: the values are not to be had: then all text is withheld.
    """

    def __init__(self, values: Mapping[str, Sequence[str]], *, is_blind: bool = False) -> None:
        self._names = {form: name for name, known in values.items() for value in known for form in forms_of(value)}
        self.is_blind = is_blind
        self.num_chars = sum(map(len, self._names))
        """What it holds in memory, about."""
        # Not one alternation of all forms: a regex tries thousands of them at each place, a dictionary none.
        self._by_head = _by_beginning(self._names, MIN_CHARS)
        self._by_stub = _by_beginning(self._names, MIN_PREFIX)
        self._longest = max(map(len, self._names), default=0)
        self._head = _pattern_of(self._by_head)

    def text(self, text: str) -> str:
        """A text without secrets."""
        if self.is_blind:
            return WITHHELD if text else ""
        if not self._names:
            return text
        text = self._without_forms(text)
        cut = _CUT.search(text)
        return text if cut is None else self._without_beginning(text[: cut.start()]) + cut.group()

    def data(self, data: Any) -> Any:
        """JSON without secrets, also in the names of fields."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, Mapping):
            return {self._key(key): self.data(value) for key, value in data.items()}
        if isinstance(data, (list, tuple)):
            return [self.data(item) for item in data]
        return data

    def report(self, report: Report) -> Report:
        """A report without secrets: its lines, its events, its answers, and what it says of a failure."""
        outcome = report.outcome
        if outcome is not None and outcome.failure is not None:
            outcome = replace(outcome, failure=self._failure(outcome.failure))
        return replace(
            report,
            observed=replace(report.observed, reason=self.text(report.observed.reason)),
            events=tuple(self._event(event) for event in report.events),
            metrics=tuple(replace(row, values=self._named(row.values)) for row in report.metrics),
            logs=tuple(replace(line, line=self.text(line.line)) for line in report.logs),
            answers=tuple(self._answer(answer) for answer in report.answers),
            outcome=outcome,
        )

    def _event(self, event: EventReport) -> EventReport:
        # Blind or not, the service reads some of the data itself: checkpoints are found by what their events say.
        data = event.data if self.is_blind and event.kind in _READ_BY_SERVICE else self.data(event.data)
        return replace(event, message=self.text(event.message), data=data)

    def _answer(self, answer: ActionAnswer) -> ActionAnswer:
        # The lines of a stack are source code, which may hold a value as it stands.
        return replace(answer, message=self.text(answer.message), text=self.text(answer.text))

    def _failure(self, failure: Failure) -> Failure:
        return replace(
            failure,
            message=self.text(failure.message),
            traceback=None if failure.traceback is None else self.text(failure.traceback),
            last_output=tuple(map(self.text, failure.last_output)),
        )

    def _named(self, values: Mapping[str, float]) -> dict[str, float]:
        return {self._key(name): value for name, value in values.items()}

    def _key(self, name: str) -> str:
        """Names of fields are the program's own; where nothing can be told from a secret they stay."""
        return name if self.is_blind else self.text(name)

    def _without_forms(self, text: str) -> str:
        """From left to right; where several forms begin, the longest counts: a secret may contain another."""
        pieces: list[str] = []
        begin = at = 0
        while (head := self._head.search(text, at)) is not None:
            at = head.start()
            form = next((form for form in self._by_head.get(head.group(), ()) if text.startswith(form, at)), None)
            if form is None:
                at += 1
            else:
                pieces += (text[begin:at], _mark(self._names[form]))
                begin = at = at + len(form)
        return "".join((*pieces, text[begin:]))

    def _without_beginning(self, text: str) -> str:
        """A line that was cut may end within a secret."""
        text = text.rstrip("\ufffd")
        for start in range(max(0, len(text) - self._longest), len(text) - MIN_PREFIX + 1):
            for form in self._by_stub.get(text[start : start + MIN_PREFIX], ()):
                if form.startswith(text[start:]):
                    return text[:start] + _mark(self._names[form])
        return text


def lines_of(value: str) -> list[str]:
    """As they come out of a program: one of less than `MIN_CHARS` characters is not recognised."""
    return [line.strip() for line in re.split(r"[\r\n]+", value)]


def forms_of(value: str) -> Iterator[str]:
    """How a value may stand in a text."""
    for known in {value, value.strip(), *lines_of(value)}:
        printed = (known, json.dumps(known)[1:-1], json.dumps(known, ensure_ascii=False)[1:-1], repr(known)[1:-1])
        in_addresses = (quote(known), quote(known, safe=""), quote_plus(known))
        for form in (*printed, *in_addresses):
            if len(form) >= MIN_CHARS:
                yield form


def _by_beginning(forms: Iterable[str], length: int) -> dict[str, list[str]]:
    """Forms by their first characters, of each the longest first."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for form in sorted(forms, key=len, reverse=True):
        found[form[:length]].append(form)
    return dict(found)


def _pattern_of(heads: Iterable[str]) -> re.Pattern[str]:
    """Finds where one of these texts, of one length, may stand: each character is one that some text has there."""
    classes = ("".join(map(re.escape, sorted(set(column)))) for column in zip(*heads, strict=True))
    return re.compile("".join(f"[{characters}]" for characters in classes), re.DOTALL)


def _mark(name: str) -> str:
    return f"[secret {name}]"
