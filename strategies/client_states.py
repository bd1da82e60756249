"""The server's side of client state: whose reply was last used, in which round."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhet_app.checkpoint import Checkpoint
from fedhet_app.client_state import StateNote, new_token, token_of

ACCEPTED = "accepted-rounds"


class ClientStates:
    """Which version of each client's state counts.

    Args:
        directory: The run directory; in a simulation the states lie in its folder ``clients``.
        num_clients: How many there are, N.
        resumed: Where to continue, or ``None``.

    Raises:
        FedhetError: The states of the run to resume are gone.
    """

    def __init__(self, directory: Path, num_clients: int, resumed: Checkpoint | None) -> None:
        self._folder = directory / "clients"
        self._run = token_of(self._folder) if resumed else new_token(self._folder)
        none = np.zeros(num_clients, dtype=np.int64)
        self._accepted: NDArray[np.int64] = resumed.arrays[ACCEPTED] if resumed else none

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what a checkpoint must hold: the last accepted round of each client, (N,)."""
        return {ACCEPTED: self._accepted}

    def note(self, partition: int, saved: Checkpoint) -> StateNote:
        """Return what a client must know.

        Args:
            partition: The client.
            saved: The checkpoint on disk, to whose round a resumed run would go back.
        """
        return StateNote(
            run=self._run,
            directory=str(self._folder),
            accepted=int(self._accepted[partition]),
            kept=int(saved.arrays[ACCEPTED][partition]),
        )

    def accept(self, partitions: Iterable[int], server_round: int) -> None:
        """Let the states count that these clients saved in a round."""
        accepted = self._accepted.copy()  # checkpoints hold the array of their round
        accepted[list(partitions)] = server_round
        self._accepted = accepted
