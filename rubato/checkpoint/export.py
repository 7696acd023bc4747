"""A model out of a checkpoint, as a plain safetensors file that anything can load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rubato.checkpoint.files import write_file
from rubato.checkpoint.manifest import MANIFEST_NAME, Manifest, find_latest, folder_name, open_checkpoint
from rubato.checkpoint.storage import Folder
from rubato.checkpoint.stripes import SAFETENSORS_NAMES, read_state, safetensors_file
from rubato.checkpoint.tree import decode
from rubato.errors import CheckpointCorrupt, UserError

COMPILED = "_orig_mod."
"""What `torch.compile` puts before the names of the model it wraps."""


def find_checkpoint(folder: Folder) -> tuple[Folder, Manifest]:
    """The checkpoint that this folder is, whatever it is called, or the newest that holds in it.

    Raises:
        UserError: there is none.  CheckpointCorrupt: it does not hold.  StorageUnreachable: no answer.
    """
    if folder.exists(MANIFEST_NAME):
        return folder, open_checkpoint(folder, any_name=True)
    passed_over: list[str] = []
    found = find_latest(folder, lambda _, cause: passed_over.append(cause))
    if found is None:
        causes = "".join(f"\n  {cause}" for cause in passed_over)
        raise UserError(
            f"there is no whole checkpoint in {folder}; name a checkpoint's folder or that of a job{causes}"
        )
    return found


def read_model(folder: Folder, manifest: Manifest, model: str = "") -> dict[str, torch.Tensor]:
    """Parameters and buffers of a model under the names of its `state_dict`, on the CPU.

    Args:    model: its name, where several were prepared.
    Raises:  UserError: there is no such model.  CheckpointCorrupt: the files do not hold.
    """
    document, tensors = read_state(folder, manifest.files)
    tree = decode(document["state"], tensors)
    models: dict[str, dict[str, list[str]]] = document.get("models") or {"": _names_of(tree)}
    if model not in models:
        raise UserError(f"this checkpoint holds {_listed(models)}; name one with --model")
    try:
        return {name.replace(COMPILED, ""): tree[kind][key] for name, (kind, key) in models[model].items()}
    except KeyError as error:
        raise CheckpointCorrupt(
            f"checkpoint {folder.name} names {error} as part of a model but does not hold it"
        ) from error


def export(
    folder: Folder, name_file: Callable[[Manifest], Path], model: str = "", job: str = ""
) -> tuple[Manifest, int]:
    """Write a model as a safetensors file, whole or not at all; its metadata says where it is from.

    Args:
        folder: of a checkpoint, or of a job's checkpoints: the newest then.
        name_file: says where to write, before tensors are read; what it raises ends the export.
        model: see `read_model`.
        job: whose checkpoint it has to be; empty: anybody's.
    Returns: the checkpoint's manifest, and the bytes of the file.
    Raises:
        UserError: it is another job's, or safetensors has no name for one of its types.
        others: as `find_checkpoint` and `read_model`.
    """
    found, manifest = find_checkpoint(folder)
    if job and manifest.job != job:
        raise UserError(
            f"the newest checkpoint in {folder} is of {manifest.job}: `rubato export {manifest.job}` writes that one, "
            "and `rubato export FOLDER` any other one there"
        )
    out = name_file(manifest)
    tensors = read_model(found, manifest, model)
    for name, tensor in tensors.items():
        if tensor.dtype not in SAFETENSORS_NAMES:
            raise UserError(
                f"{name} is {tensor.dtype}, for which safetensors has no name: this model cannot be such a file"
            )
    # Wide elements first keeps every tensor aligned, as readers that map the file want.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    checkpoint = folder_name(manifest.attempt, manifest.step)
    metadata = {"format": "pt", "job": manifest.job, "step": str(manifest.step), "checkpoint": checkpoint}
    return manifest, write_file(out, safetensors_file(ordered, metadata)).bytes


def _names_of(tree: dict[str, Any]) -> dict[str, list[str]]:
    """Of a checkpoint that does not say which names its models have."""
    return {name: [kind, name] for kind in ("parameters", "buffers") for name in tree[kind]}


def _listed(models: dict[str, Any]) -> str:
    return ", ".join(repr(name) for name in models if name) or "one model without a name"
