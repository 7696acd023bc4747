"""Rubato: elastic training. Scale workers while they train, lose one, and get the same bits.

Public names are loaded when they are first used: `import rubato` alone imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rubato import data
    from rubato.declarative import Callback, Evaluation, train
    from rubato.engine.epoch import Epoch
    from rubato.engine.step import Step
    from rubato.errors import RubatoError, UserError
    from rubato.program import main
    from rubato.run import Run

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "Epoch",
    "Evaluation",
    "RubatoError",
    "Run",
    "Step",
    "UserError",
    "__version__",
    "data",
    "main",
    "train",
]

_PUBLIC = {
    "Callback": "rubato.declarative",
    "Evaluation": "rubato.declarative",
    "train": "rubato.declarative",
    "Run": "rubato.run",
    "Epoch": "rubato.engine.epoch",
    "Step": "rubato.engine.step",
    "main": "rubato.program",
    "RubatoError": "rubato.errors",
    "UserError": "rubato.errors",
}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name == "data":
        return importlib.import_module("rubato.data")
    raise AttributeError(f"module 'rubato' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
