"""Whether a working folder has the function that a spec names, told before anything is packed. Runs none of it."""

from __future__ import annotations

from pathlib import Path

from rubato.entrypoint_source import check_source, find_source, places


def check_entrypoint(entrypoint: str, folder: Path) -> str:
    """Look for the function by reading its file.

    Args:
        entrypoint: `train.py:train`, or `package.module:train`; without a function it is `train`.
        folder: the working folder.

    Returns:
        A remark: the file cannot be read by the Python here. Empty where there is nothing to say, also of a module
        that is not in the folder: it may be installed where the workers run.

    Raises:
        EntrypointError: the file is not there, or has no such function; names the one that was meant, or those it has.
    """
    target, _, name = entrypoint.partition(":")
    names = {path.name for path in folder.glob("*.py")} | {one for one in places(target) if (folder / one).is_file()}
    path = find_source(target, names)
    if path is None:
        return ""
    try:
        source = (folder / path).read_bytes()
    except OSError as error:
        return f"{target} cannot be read: {error}"
    return check_source(target, name, source)
