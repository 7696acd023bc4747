"""What a job runs, to be read: the files of its package, or the source of its recipe. Nothing is ever unpacked."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rubato.wire
from rubato.entrypoint_source import check_source, find_source, places
from rubato.errors import EntrypointError, Finding, SpecError
from rubato.wire.spec import JobSpec
from service.context import Context
from service.errors import ErrorKind, ServiceError, invalid_spec, not_found
from service.jobs import find
from service.packages import PackageStore, check_method
from service.threads import DOWNLOADS, run_in

MAX_SHOWN_BYTES = 512 * 1024
"""Of one file. Source is shorter; who wants more has the folder."""
_RECIPES = Path(rubato.wire.__file__).parents[1] / "recipes"
"""Read as text: importing them is for training processes."""


@dataclass(frozen=True)
class Code:
    """Where a job's code lies."""

    package: str | None
    recipe: str | None
    entrypoint: str

    @classmethod
    def of(cls, spec: dict[str, Any]) -> Code:
        """Read it off a spec."""
        recipe = spec.get("recipe")
        program = f"{_recipe_file(recipe)}:train" if recipe else spec.get("entrypoint")
        return cls(spec.get("package"), recipe, program or "")


async def list_files(context: Context, reference: str) -> dict[str, Any]:
    """The files of a job's code, in order of their paths, and which one it begins in.

    Raises:
        ServiceError: not_found (no such job).
    """
    code = await _code_of(context, reference)
    sizes = await run_in(DOWNLOADS, _sizes, context.packages, code)
    entry = entrypoint_file(code.entrypoint, sizes.keys())
    source, name = ("recipe", code.recipe) if code.recipe else ("package", code.package)
    return {
        "source": source if sizes else "none",
        "name": name or "",
        "entrypoint": code.entrypoint,
        "items": [{"path": path, "bytes": sizes[path], "is_entrypoint": path == entry} for path in sorted(sizes)],
    }


async def read_text(context: Context, reference: str, path: str) -> dict[str, Any]:
    """The text of one of these files, up to `MAX_SHOWN_BYTES`.

    Raises:
        ServiceError: not_found (no such job, or no such file in its code), package_invalid (it cannot be unpacked).
    """
    code = await _code_of(context, reference)
    sizes = await run_in(DOWNLOADS, _sizes, context.packages, code)
    # Compared with the names that there are, never joined to a folder: a path cannot lead anywhere else.
    if path not in sizes:
        raise not_found("file", path[:200])
    data = await run_in(DOWNLOADS, _read, context.packages, code, path)
    return {
        "path": path,
        "bytes": sizes[path],
        "text": _text_of(data[:MAX_SHOWN_BYTES]),
        "is_cut": len(data) > MAX_SHOWN_BYTES,
    }


async def check_program(context: Context, spec: JobSpec) -> None:
    """Refuse a job whose package is here and lacks the file or function that its entrypoint names. Runs none of it.

    Raises:
        ServiceError: invalid_spec.
    """
    if spec.package is None or spec.entrypoint is None:
        return
    code = Code(spec.package, None, spec.entrypoint)
    try:
        await run_in(DOWNLOADS, _check_program, context.packages, code)
    except EntrypointError as error:
        raise invalid_spec(SpecError([Finding("entrypoint", str(error))])) from None


def _check_program(packages: PackageStore, code: Code) -> None:
    target, _, name = code.entrypoint.partition(":")
    try:
        sizes = _sizes(packages, code)
        path = find_source(target, sizes) if sizes else None
        if path is None or sizes[path] > MAX_SHOWN_BYTES:
            return
        source = _read(packages, code, path)
    except (ServiceError, OSError, zipfile.BadZipFile):  # damaged, or removed meanwhile: told where it is needed
        return
    check_source(target, name, source)


def entrypoint_file(entrypoint: str, paths: Any) -> str | None:
    """The file that `train.py:train` or `package.module:train` means, if it is among these."""
    target = entrypoint.partition(":")[0]
    candidates = (*places(target), f"{target.replace('.', '/')}/__main__.py")
    return next((path for path in candidates if path in paths), None)


async def _code_of(context: Context, reference: str) -> Code:
    async with context.database.read() as session:
        return Code.of((await find(session, reference)).spec)


def _sizes(packages: PackageStore, code: Code) -> dict[str, int]:
    if code.recipe:
        path = _RECIPES / _recipe_file(code.recipe)
        return {path.name: path.stat().st_size} if path.is_file() else {}
    if code.package is None or not packages.path(code.package).is_file():
        return {}
    with zipfile.ZipFile(packages.path(code.package)) as archive:
        return {entry.filename: entry.file_size for entry in archive.infolist() if not entry.is_dir()}


def _read(packages: PackageStore, code: Code, path: str) -> bytes:
    """One byte more than is shown, so that it can be told that there is more."""
    if code.recipe:
        with (_RECIPES / path).open("rb") as stream:
            return stream.read(MAX_SHOWN_BYTES + 1)
    assert code.package is not None
    try:
        with zipfile.ZipFile(packages.path(code.package)) as archive:
            entry = archive.getinfo(path)
            check_method(entry)  # a release before this one stored others, too
            with archive.open(entry) as stream:
                return stream.read(MAX_SHOWN_BYTES + 1)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError, ValueError) as error:
        raise ServiceError(ErrorKind.PACKAGE_INVALID, f"{path} cannot be read from its package: {error}.") from None


def _recipe_file(recipe: str) -> str:
    """As `rubato.recipes` names it; a recipe has no folders, whatever a spec of another release says."""
    return Path(f"{recipe.replace('-', '_')}.py").name


def _text_of(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    # Cut in the middle of a character, or written in another encoding: what cannot be read is shown as such.
    text = data.decode(errors="replace")
    return None if text.count("\ufffd") > max(8, len(text) // 20) else text
