"""What a client keeps between rounds and never sends: a version per round, pending until accepted.

A state that a client saves in a round counts once the server says that it used the reply of that
round; the next ``load`` deletes it otherwise. The version that the server's last checkpoint counts
on is kept as well, so that a resumed run finds the states of its checkpoint's round.
"""

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context
from numpy.typing import NDArray

from fedhet_app.errors import FedhetError
from fedhet_app.state_shelves import Arrays, FolderShelf, RecordShelf, Shelf

_TOKEN = ".run"
_TOKEN_FORM = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class StateNote:
    """What the server tells a client of its state.

    Attributes:
        run: The run's token: no two runs share a state.
        directory: Where the server keeps clients' states; of use where a client sees that folder.
        accepted: The last round whose reply from this client was used; 0 for none.
        kept: The same as of the last checkpoint.
    """

    run: str
    directory: str
    accepted: int
    kept: int


class ClientState:
    """The state of one client in one round of one run.

    Args:
        shelf: Where its versions are.
        note: Which of them count.
        tidy: Whether ``load`` deletes what is not needed. Not between a round's training and its
            end: until then a resumed run may go back to the round before.
    """

    def __init__(self, shelf: Shelf, note: StateNote, *, tidy: bool = True) -> None:
        self._shelf, self._note, self._tidy = shelf, note, tidy

    def load(self) -> Arrays | None:
        """Return the accepted state, or ``None`` before the first, and delete what is not needed.

        Raises:
            FedhetError: The state is lost, or its file is not whole.
        """
        accepted = self._note.accepted
        rounds = self._shelf.rounds()
        if self._tidy:
            for stale in rounds - {accepted, self._note.kept}:
                self._shelf.remove(stale)
        if accepted == 0:
            return None
        if accepted not in rounds:
            remedy = (
                "the client no longer has it; set state-dir in its node config, which a restart "
                "does not touch, and start the run again"
            )
            raise FedhetError("client state of round", accepted, remedy)
        return self._shelf.read(accepted)

    def draft(self, server_round: int) -> Arrays:
        """Return what was saved earlier in the same round, for a round of two exchanges.

        Raises:
            FedhetError: Nothing was, or its file is not whole.
        """
        if server_round not in self._shelf.rounds():
            remedy = "is gone: the client was restarted between the two exchanges of that round"
            raise FedhetError("client state of round", server_round, remedy)
        return self._shelf.read(server_round)

    def save(self, server_round: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Put down the state after a round; it counts once the server has used the reply.

        Args:
            server_round: The round of the reply.
            arrays: The state by name.

        Raises:
            FedhetError: It cannot be written.
        """
        self._shelf.write(server_round, dict(arrays))


def open_state(
    note: StateNote, partition: int, context: Context, *, tidy: bool = True
) -> ClientState:
    """Return a client's state: in the node's ``state-dir``, the run directory, or the context.

    The run directory is used only where it holds the token of this very run: in a simulation.

    Raises:
        FedhetError: ``state-dir`` is not usable, or the token is none.
    """
    if not _TOKEN_FORM.fullmatch(note.run):  # it becomes part of a path
        raise FedhetError("run", note.run, "is no token of a run; the server must be fedhet's own")
    offered, own = Path(note.directory), state_dir(context)
    if own is not None:
        return ClientState(FolderShelf(own / note.run / str(partition)), note, tidy=tidy)
    if _read_token(offered) == note.run:
        return ClientState(FolderShelf(offered / str(partition)), note, tidy=tidy)
    return ClientState(RecordShelf(context.state, note.run), note, tidy=tidy)


def state_dir(context: Context) -> Path | None:
    """Return the folder that the node config names, made if it is not there, or ``None``.

    Raises:
        FedhetError: It is no absolute path, or cannot be written to.
    """
    value = context.node_config.get("state-dir", "")
    if value == "":
        return None
    if not isinstance(value, str) or not Path(value).is_absolute():
        raise FedhetError("state-dir", value, "the node config's state-dir is an absolute path")
    path = Path(value)
    try:
        path.mkdir(parents=True, exist_ok=True)
        usable = os.access(path, os.W_OK)
    except OSError:
        usable = False
    if not usable:
        raise FedhetError("state-dir", value, "cannot be written to; name another folder")
    return path


def new_token(directory: Path) -> str:
    """Name a run that starts, and leave the name in the folder of its clients' states."""
    token = secrets.token_hex(16)
    directory.mkdir(exist_ok=True)
    (directory / _TOKEN).write_text(token, encoding="utf-8")
    return token


def token_of(directory: Path) -> str:
    """Return the name of a run to resume.

    Raises:
        FedhetError: The folder of its clients' states is not there.
    """
    token = _read_token(directory)
    if token is None:
        remedy = f"holds no {_TOKEN}: the clients' states are gone; start the run again"
        raise FedhetError("client states", str(directory), remedy)
    return token


def _read_token(directory: Path) -> str | None:
    try:
        return (directory / _TOKEN).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
