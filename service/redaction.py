"""Takes the values of secrets out of what a job's programs said, before any of it is stored. Pure.

Known are the value itself, each of its lines, and the forms it takes in JSON, in Python's repr and in addresses. Other
encodings (base64, hex, one character at a time) are not: this is against accidents, not against a program that wants to
tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, quote_plus

from rubato.wire.cluster import EventReport, Failure, Report

MIN_CHARS = 8
"""A shorter value would be found in half of all words; secrets of jobs have at least so many."""
MIN_PREFIX = 4
"""Of a line that was cut at its end, so many characters of a secret are taken for its beginning."""
WITHHELD = "[withheld: this job has secrets, and the service has not the key to tell them from the rest]"
_CUT = re.compile(r" \.\.\. \([0-9]+ bytes cut\)$")


class Redactor:
    """Replaces secrets by their names.

    Args:
        values: by name, each with all values that the job's processes may hold.
        is_blind: the values are not to be had: then all text is withheld.
    """

    def __init__(self, values: Mapping[str, Sequence[str]], *, is_blind: bool = False) -> None:
        self._names = {form: name for name, known in values.items() for value in known for form in forms_of(value)}
        self._is_blind = is_blind
        # The longest first: of two secrets one may contain the other.
        ordered = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def text(self, text: str) -> str:
        """A text without secrets."""
        if self._is_blind:
            return WITHHELD if text else ""
        if self._pattern is None:
            return text
        text = self._pattern.sub(lambda match: _mark(self._names[match.group()]), text)
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
        """A report without secrets: its lines, its events, and what it says of a failure."""
        outcome = report.outcome
        if outcome is not None and outcome.failure is not None:
            outcome = replace(outcome, failure=self._failure(outcome.failure))
        return replace(
            report,
            observed=replace(report.observed, reason=self.text(report.observed.reason)),
            events=tuple(self._event(event) for event in report.events),
            metrics=tuple(replace(row, values=self._named(row.values)) for row in report.metrics),
            logs=tuple(replace(line, line=self.text(line.line)) for line in report.logs),
            outcome=outcome,
        )

    def _event(self, event: EventReport) -> EventReport:
        # Blind or not, the service reads some of the data itself: checkpoints are found by what their events say.
        data = event.data if self._is_blind and event.kind.startswith("checkpoint.") else self.data(event.data)
        return replace(event, message=self.text(event.message), data=data)

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
        return name if self._is_blind else self.text(name)

    def _without_beginning(self, text: str) -> str:
        """A line that was cut may end within a secret."""
        text = text.rstrip("\ufffd")
        for form, name in self._names.items():
            start = text.find(form[:MIN_PREFIX], max(0, len(text) - len(form)))
            while start >= 0:
                if form.startswith(text[start:]):
                    return text[:start] + _mark(name)
                start = text.find(form[:MIN_PREFIX], start + 1)
        return text


def forms_of(value: str) -> Iterator[str]:
    """How a value may stand in a text."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", value)]
    for known in {value, value.strip(), *lines}:
        printed = (known, json.dumps(known)[1:-1], json.dumps(known, ensure_ascii=False)[1:-1], repr(known)[1:-1])
        in_addresses = (quote(known), quote(known, safe=""), quote_plus(known))
        for form in (*printed, *in_addresses):
            if len(form) >= MIN_CHARS:
                yield form


def _mark(name: str) -> str:
    return f"[secret {name}]"
