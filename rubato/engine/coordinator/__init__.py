"""The job protocol as a pure machine: a message or a tick goes in, orders come out.

It alone mints generations. `rubato run` hosts it over local processes, `jobs/` over Ray actors; the tests over nothing.

    found    no worker has state: spawn, wait until they stand by, mint from the newest checkpoint, or fresh
    resize   members train; joiners warm up beside them; a new generation is *pending* until its members have switched
    repair   a member died: revoke everything formed so far, wait until every survivor is in the engine (`Broken`),
             mint the next generation from those that have state; nobody has it: found again
    end      all members stopped at one agreed boundary: release them; or a failure: kill them
"""

from rubato.engine.coordinator.machine import Coordinator
from rubato.engine.coordinator.orders import (
    Answer,
    CheckpointFound,
    CommitManifest,
    DropCheckpoints,
    Emit,
    End,
    FindCheckpoint,
    Kill,
    ManifestCommitted,
    Order,
    Rows,
    RowsStored,
    Send,
    Spawn,
    Terms,
    Wish,
)

__all__ = [
    "Answer",
    "CheckpointFound",
    "CommitManifest",
    "Coordinator",
    "DropCheckpoints",
    "Emit",
    "End",
    "FindCheckpoint",
    "Kill",
    "ManifestCommitted",
    "Order",
    "Rows",
    "RowsStored",
    "Send",
    "Spawn",
    "Terms",
    "Wish",
]
