"""What a client keeps between rounds and never sends: a version per round, pending until accepted.

A state that a client saves in a round counts once the server says that it used the reply of that
round; the ``load`` of a later round deletes it otherwise. The version that the server's last
checkpoint counts on is kept as well, so that a resumed run finds the states of that round.

A state that is damaged or gone is never replaced in silence: its file is set aside, every message
to that client is answered by an error that names the file and the ways out, and the run goes on
with the other clients.
"""

import logging
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
from fedhet_app.sealed import DamagedError
from fedhet_app.state_shelves import Arrays, FolderShelf, RecordShelf, Shelf

LOG = logging.getLogger("fedhet")

ANEW = "new-state"
_SUMMED = ("scaffold",)
_WAYS_OUT = (
    f"put a copy of it back, or start the node with {ANEW}=true in its node config "
    f"({', '.join(_SUMMED)}: start the run again)"
)
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
        server_round: The round of the message, before which ``load`` deletes what is not needed;
            ``None`` for a query, which may come between a round's training and its end: until then
            a resumed run may go back to the round before.
        anew: Whether a state that is gone is replaced by none, as before the first round.

    Attributes:
        begun_anew: Whether ``load`` has done so.
    """

    def __init__(
        self, shelf: Shelf, note: StateNote, server_round: int | None, *, anew: bool = False
    ) -> None:
        self._shelf, self._note, self._round, self._anew = shelf, note, server_round, anew
        self.begun_anew = False

    def load(self) -> Arrays | None:
        """Return the accepted state, or ``None`` before the first, and delete what is not needed.

        Raises:
            FedhetError: The state is gone, or its file is not what was written.
        """
        accepted = self._note.accepted
        rounds = self._shelf.rounds()
        # Versions of later rounds stay: they are of a process that came after this one, or of a
        # run that was stopped, and then their rounds come again.
        for stale in rounds - {accepted, self._note.kept}:
            if self._round is not None and stale < self._round:
                self._shelf.remove(stale)
        if accepted == 0:
            return None
        if accepted in rounds:
            return self._read(accepted)
        if self._anew:
            LOG.warning("client state %s is gone: begun anew", self._shelf.place(accepted))
            self.begun_anew = True
            return None
        remedy = f"the client no longer has it; {_WAYS_OUT}"
        raise FedhetError("client state", self._shelf.place(accepted), remedy)

    def draft(self, server_round: int) -> Arrays:
        """Return what was saved earlier in the same round, for a round of two exchanges.

        Raises:
            FedhetError: Nothing was, or its file is not what was written.
        """
        if server_round not in self._shelf.rounds():
            remedy = "is gone: the client was restarted between the two exchanges of that round"
            raise FedhetError("client state", self._shelf.place(server_round), remedy)
        return self._read(server_round)

    def _read(self, server_round: int) -> Arrays:
        try:
            return self._shelf.read(server_round)
        except DamagedError as error:
            remedy = f"{error.remedy}; {_WAYS_OUT}"
            raise DamagedError(error.key, error.value, remedy) from error

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
    note: StateNote,
    partition: int,
    context: Context,
    *,
    server_round: int | None = None,
    anew: bool = False,
) -> ClientState:
    """Return a client's state: in the node's ``state-dir``, the run directory, or the context.

    The run directory is used only where it holds the token of this very run: in a simulation.

    Raises:
        FedhetError: ``state-dir`` is not usable, or the token is none.
    """
    if not _TOKEN_FORM.fullmatch(note.run):  # it becomes part of a path
        raise FedhetError("run", note.run, "is no token of a run; the server must be fedhet's own")
    offered, own = Path(note.directory), state_dir(context)
    shelf: Shelf = RecordShelf(context.state, note.run)
    if own is not None:
        folder = own / note.run / str(partition)
        shelf = FolderShelf(folder, note.run, partition, durable=True)
    elif _read_token(offered) == note.run:
        # A power cut ends a simulation's clients with its server, so no disk is waited for.
        shelf = FolderShelf(offered / str(partition), note.run, partition, durable=False)
    return ClientState(shelf, note, server_round, anew=anew)


def begins_anew(context: Context, strategy: str) -> bool:
    """Return whether the node config lets a client whose state is gone begin with none.

    Raises:
        FedhetError: The value is no boolean, or the method cannot go on with a client that does.
    """
    value = context.node_config.get(ANEW, False)
    if not isinstance(value, bool):
        raise FedhetError(ANEW, value, "must be true or false")
    if value and strategy in _SUMMED:
        remedy = (
            f"the server of {strategy} holds the mean of the clients' states, so none may be "
            "begun anew; start the run again"
        )
        raise FedhetError(ANEW, value, remedy)
    return value


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
