"""Where the versions of one client's state lie: in files, or in Flower's context."""

import re
from pathlib import Path
from typing import Any, Protocol

from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from fedhet_app.results import load_tensors, save_tensors

Arrays = dict[str, NDArray[Any]]

_FILE = re.compile(r"round-(\d+)\.safetensors")


class Shelf(Protocol):
    """Holds the versions of one client's state by round."""

    def rounds(self) -> set[int]:
        """Return the rounds of which there is a version."""

    def read(self, server_round: int) -> Arrays:
        """Return the version of a round."""

    def write(self, server_round: int, arrays: Arrays) -> None:
        """Put down the version of a round in one step."""

    def remove(self, server_round: int) -> None:
        """Delete the version of a round."""


class FolderShelf:
    """A safetensors file per version.

    Args:
        folder: The client's own; made when first written to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _file(self, server_round: int) -> Path:
        return self._folder / f"round-{server_round}.safetensors"

    def rounds(self) -> set[int]:
        """Return the rounds of which there is a whole file."""
        names = (path.name for path in self._folder.glob("*"))
        return {int(match[1]) for match in map(_FILE.fullmatch, names) if match}

    def read(self, server_round: int) -> Arrays:
        """Return the content of a file.

        Raises:
            FedhetError: It is not whole.
        """
        return load_tensors(self._file(server_round))[0]

    def write(self, server_round: int, arrays: Arrays) -> None:
        """Write a file beside its place and move it there.

        Raises:
            FedhetError: It cannot be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        save_tensors(self._file(server_round), arrays, {"round": str(server_round)})

    def remove(self, server_round: int) -> None:
        """Delete a file."""
        self._file(server_round).unlink()


class RecordShelf:
    """A record of Flower's ``Context.state`` per version: lost when the node restarts.

    Args:
        records: The state of the node's context.
        run: The run's token.
    """

    def __init__(self, records: RecordDict, run: str) -> None:
        self._records, self._prefix = records, f"state.{run}."

    def rounds(self) -> set[int]:
        """Return the rounds of which there is a record."""
        names = (name for name in self._records if name.startswith(self._prefix))
        return {int(name.removeprefix(self._prefix)) for name in names}

    def read(self, server_round: int) -> Arrays:
        """Return the content of a record."""
        record = self._records.array_records[f"{self._prefix}{server_round}"]
        return {name: array.numpy() for name, array in record.items()}

    def write(self, server_round: int, arrays: Arrays) -> None:
        """Replace a record."""
        record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        self._records[f"{self._prefix}{server_round}"] = record

    def remove(self, server_round: int) -> None:
        """Delete a record."""
        del self._records[f"{self._prefix}{server_round}"]
