"""A training process in the network namespace of its worker, entered before there is a thread or a socket."""

import ctypes
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

CLONE_NEWNET = 0x40000000


def enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{namespace}").open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")


def main() -> None:
    number = os.environ["RUBATO_INCARNATION"].partition(".")[2]
    if machines := os.environ.get("RUBATO_TEST_MACHINES"):
        number = machines.split(",")[int(number) - 1]
    enter(f"{os.environ['RUBATO_TEST_NAMESPACES']}-{number}")

    from rubato.launch import child
    from rubato.wire import worker as wire

    decode = wire.decode

    def decode_with_own_address(data: Any) -> Any:
        message = decode(data)
        return replace(message, host=f"10.77.0.{number}") if isinstance(message, wire.Start) else message

    wire.decode = decode_with_own_address  # type: ignore[assignment]
    child.main()


if __name__ == "__main__":
    main()
