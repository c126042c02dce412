"""Tensors and a few words in one file, written so that a reader finds the old file or the new one, never a half.

safetensors holds both: tensors by name, and JSON in its metadata. Nothing is executed on loading.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from bearcat.errors import InputError


def save(path: Path, tensors: dict[str, Tensor], told: dict[str, Any]) -> None:
    """Writes beside the file and renames; what was there stays until the new one is whole on disk."""
    from safetensors.torch import save as serialise

    path.parent.mkdir(parents=True, exist_ok=True)
    content = serialise(
        {name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()},
        metadata={"told": json.dumps(told)},
    )
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors (on the CPU) and the words of a file, or one sentence that it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            told = json.loads((file.metadata() or {})["told"])
            return {name: file.get_tensor(name) for name in file.keys()}, told  # noqa: SIM118 (no mapping)
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file") from error
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: is damaged and cannot be read; delete it to start from the beginning") from error
