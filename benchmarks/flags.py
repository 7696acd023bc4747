"""Flags that several benchmarks have."""

from __future__ import annotations


def numbers(text: str) -> list[int]:
    """`1,2,4`"""
    return [int(one) for one in text.split(",")]


def seconds(text: str) -> list[float]:
    """`0,0.3`"""
    return [float(one) for one in text.split(",")]
