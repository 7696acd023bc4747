from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rubato.allocator import keep_freed_memory

PROGRAM = """
import resource, sys, torch
from rubato.allocator import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("not glibc")
for _ in range(20):  # the heap takes a few to find its shape
    before = faults()
    tensors = [torch.ones(40 << 18) for _ in range(2)]  # more than glibc ever keeps by itself
    del tensors
print(faults() - before)
"""


def last_faults(how: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    environment.pop("LD_PRELOAD", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=False, env=environment
    )
    if "not glibc" in done.stderr:
        pytest.skip("this C library is not glibc: it is left as it is")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_tensors_of_the_size_of_freed_ones_cost_no_page_faults() -> None:
    assert last_faults("keep") < 100
    assert last_faults("leave") > 1000, "80 MB are 20,000 pages; has this C library changed?"


def test_what_the_environment_says_is_left_alone() -> None:
    assert not keep_freed_memory({"MALLOC_TRIM_THRESHOLD_": "1"})
    assert not keep_freed_memory({"LD_PRELOAD": "libjemalloc.so"})
