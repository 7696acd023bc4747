"""What others run on the Ray of a home: it takes room there, and the service's scheduler does not know of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.ray_node import HasHome

HOLD = """
import sys, ray
ray.init(address=sys.argv[1], namespace="others", log_to_driver=False)

@ray.remote
class Holder:
    def holds(self):
        return True

holder = Holder.options(num_cpus=float(sys.argv[2]), memory=float(sys.argv[3])).remote()
assert ray.get(holder.holds.remote())
print("held", flush=True)
sys.stdin.read()
"""
LEAVES_S = 60.0


@contextmanager
def others_hold(home: HasHome, *, cpu: float = 0, memory: int = 0) -> Iterator[None]:
    """An actor of others that has so many CPU slots and bytes of memory meanwhile."""
    record = home.home.read_record()
    assert record is not None
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(home.home.path / "ray-token")}
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLD, record.ray_address, str(cpu), str(memory)],
        env=os.environ | own,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert "held\n" in iter(child.stdout.readline, "")
        yield
    finally:
        child.stdin.close()
        child.wait(LEAVES_S)
        child.stdout.close()
