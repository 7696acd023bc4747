"""The ways to train the workload, each driven from outside by the same few verbs."""

from benchmarks.peers.ddp import DDP, DDP_SAME_PASSES
from benchmarks.peers.peer import Kind, Peer
from benchmarks.peers.ray_train import RAY_TRAIN
from benchmarks.peers.rubato_run import RUBATO
from benchmarks.peers.torchft import TORCHFT
from benchmarks.peers.torchrun import TORCHRUN

PEERS: dict[str, Kind] = {
    "rubato": RUBATO,
    "ddp": DDP,
    "ddp-passes": DDP_SAME_PASSES,
    "torchrun": TORCHRUN,
    "ray": RAY_TRAIN,
    "torchft": TORCHFT,
}
"""By the name that `--peers` takes, in the order of the table's columns."""

__all__ = ["PEERS", "Kind", "Peer"]
