"""Where the versions of one client's state lie: in files, or in Flower's context."""

import re
from pathlib import Path
from typing import Any, Protocol

from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from fedhet_app.errors import FedhetError
from fedhet_app.results import make_folder
from fedhet_app.sealed import DamagedError, load_sealed, save_sealed

Arrays = dict[str, NDArray[Any]]

FORMAT = "fedhet-client-state-1"
ASIDE = ".corrupt"
_FILE = re.compile(r"round-(\d+)\.safetensors")


class Shelf(Protocol):
    """Holds the versions of one client's state by round."""

    def place(self, server_round: int) -> str:
        """Return where the version of a round is, or would be, for messages."""

    def rounds(self) -> set[int]:
        """Return the rounds of which there is a version."""

    def read(self, server_round: int) -> Arrays:
        """Return the version of a round.

        Raises:
            DamagedError: It is not what was written; it is set aside, so that it counts no more.
        """

    def write(self, server_round: int, arrays: Arrays) -> None:
        """Put down the version of a round in one step."""

    def remove(self, server_round: int) -> None:
        """Delete the version of a round."""


class FolderShelf:
    """A sealed safetensors file per version, whose metadata says whose and which it is.

    Args:
        folder: The client's own; made when first written to.
        run: The run's token.
        partition: The client.
        durable: Whether what is written must outlast a power cut.
    """

    def __init__(self, folder: Path, run: str, partition: int, *, durable: bool) -> None:
        self._folder, self._durable = folder, durable
        self._owner = {"format": FORMAT, "run": run, "partition": str(partition)}

    def _file(self, server_round: int) -> Path:
        return self._folder / f"round-{server_round}.safetensors"

    def place(self, server_round: int) -> str:
        """Return the path of a file."""
        return str(self._file(server_round))

    def rounds(self) -> set[int]:
        """Return the rounds of which there is a whole file."""
        names = (path.name for path in self._folder.glob("*"))
        return {int(match[1]) for match in map(_FILE.fullmatch, names) if match}

    def read(self, server_round: int) -> Arrays:
        """Return the content of a file.

        Raises:
            DamagedError: It is not what was written; ``.corrupt`` is added to its name.
            FedhetError: The system does not let it be read.
        """
        path = self._file(server_round)
        expected = {**self._owner, "round": str(server_round)}
        try:
            arrays, metadata = load_sealed(path)
            if metadata != expected:
                raise DamagedError("file", str(path), f"says that it is {metadata}, not {expected}")
        except DamagedError as error:
            path.replace(path.with_name(path.name + ASIDE))
            reason = f"{error.remedy}; set aside as {path.name}{ASIDE}"
            raise DamagedError("client state", str(path), reason) from error
        return arrays

    def write(self, server_round: int, arrays: Arrays) -> None:
        """Write a file beside its place and move it there.

        Raises:
            FedhetError: It cannot be written.
        """
        try:
            make_folder(self._folder, durable=self._durable)
        except OSError as error:
            remedy = f"cannot be made ({error.strerror}); make room, or mend state-dir"
            raise FedhetError("client state", str(self._folder), remedy) from error
        for left_behind in self._folder.glob("*.partial"):
            left_behind.unlink(missing_ok=True)
        metadata = {**self._owner, "round": str(server_round)}
        save_sealed(self._file(server_round), arrays, metadata, durable=self._durable)

    def remove(self, server_round: int) -> None:
        """Delete a file."""
        self._file(server_round).unlink(missing_ok=True)


class RecordShelf:
    """A record of Flower's ``Context.state`` per version: lost when the node restarts.

    Args:
        records: The state of the node's context.
        run: The run's token.
    """

    def __init__(self, records: RecordDict, run: str) -> None:
        self._records, self._prefix = records, f"state.{run}."

    def place(self, server_round: int) -> str:
        """Return that it is in the node's memory, and what keeps a state longer."""
        return f"round {server_round}, in memory, for want of a state-dir in the node config"

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
