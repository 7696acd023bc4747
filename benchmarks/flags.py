"""Flags that several benchmarks have."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence


def numbers(text: str) -> list[int]:
    """`1,2,4`"""
    return [int(one) for one in text.split(",")]


def decimals(text: str) -> list[float]:
    """`0,0.3`"""
    return [float(one) for one in text.split(",")]


def words(known: Sequence[str]) -> Callable[[str], list[str]]:
    """`b,a`: a reader of some of these words, which gives them in their own order."""

    def read(text: str) -> list[str]:
        given = [one for one in text.split(",") if one]
        unknown = [one for one in given if one not in known]
        if unknown or not given:
            raise ArgumentTypeError(f"{', '.join(unknown) or 'nothing'}: choose from {', '.join(known)}")
        return [one for one in known if one in given]

    return read
