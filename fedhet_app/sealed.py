"""Safetensors files that a run cannot do without: on the disk when written, checked when read.

Safetensors checks lengths but not content. A seal, the SHA-256 of every tensor and of the rest of
the metadata, stands in the file's own metadata, so that one rename puts both in place.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError

from fedhet_app.errors import FedhetError, one_line
from fedhet_app.results import load_tensors, save_tensors

SEAL = "sha256"


class DamagedError(FedhetError):
    """A file whose content is not what was written."""


def save_sealed(
    path: Path,
    tensors: dict[str, NDArray[Any]],
    metadata: Mapping[str, str],
    *,
    durable: bool = True,
) -> None:
    """Write a file in one step, with its seal.

    Args:
        path: Where; the old file stays until the new one is whole.
        tensors: By name.
        metadata: What else to say of them.
        durable: Whether it must outlast a power cut, for which the disk is waited for.

    Raises:
        FedhetError: It cannot be written.
    """
    sealed = {**metadata, SEAL: _seal(tensors, metadata)}
    save_tensors(path, tensors, sealed, durable=durable)


def load_sealed(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return tensors and metadata of a file, its seal aside.

    Raises:
        DamagedError: The file is not whole, or has another content than was written.
        FedhetError: It is not there, or the system does not let it be read.
    """
    try:
        tensors, metadata = load_tensors(path)
    except FedhetError as error:
        if isinstance(error.__cause__, SafetensorError):
            raise DamagedError("file", str(path), f"cannot be read ({error.__cause__})") from error
        raise
    except Exception as error:  # a damaged header can name a type that NumPy does not know
        raise DamagedError("file", str(path), f"cannot be read ({one_line(error)})") from error
    seal = metadata.pop(SEAL, None)
    if seal is not None and seal != _seal(tensors, metadata):  # earlier versions wrote none
        raise DamagedError(
            "file", str(path), "its content is not what was written (SHA-256 differs)"
        )
    return tensors, metadata


def _seal(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of names, types, shapes and values, and of the metadata."""
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name, array in sorted(tensors.items()):
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
