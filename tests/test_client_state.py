import numpy as np
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedhet_app.client_state import (
    ClientState,
    StateNote,
    new_token,
    open_state,
    state_dir,
    token_of,
)
from fedhet_app.errors import FedhetError
from fedhet_app.state_shelves import FolderShelf, RecordShelf

RUN, OTHER_RUN = "0" * 32, "f" * 32


def folder_shelf(tmp_path):
    return FolderShelf(tmp_path / "clients" / "3")


def record_shelf(tmp_path):
    return RecordShelf(RecordDict(), RUN)


SHELVES = pytest.mark.parametrize("make", [folder_shelf, record_shelf])


def note(accepted=0, kept=0, run=RUN, directory=""):
    return StateNote(run=run, directory=str(directory), accepted=accepted, kept=kept)


def at(shelf, accepted=0, kept=0):
    return ClientState(shelf, note(accepted, kept))


def arrays_of(value):
    return {"control": np.full(3, value, np.float32), "head": np.arange(value + 1.0)}


def assert_equal(loaded, value):
    expected = arrays_of(value)
    assert set(loaded) == set(expected)
    for name, array in expected.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)


@SHELVES
def test_an_accepted_state_comes_back_as_it_was_saved(make, tmp_path):
    shelf = make(tmp_path)
    assert at(shelf).load() is None
    at(shelf).save(4, arrays_of(7))
    assert_equal(at(shelf, accepted=4).load(), 7)
    assert_equal(at(shelf, accepted=4).load(), 7)


@SHELVES
def test_a_state_whose_reply_was_not_used_is_thrown_away(make, tmp_path):
    shelf = make(tmp_path)
    at(shelf).save(1, arrays_of(1))
    assert at(shelf).load() is None
    assert shelf.rounds() == set()
    at(shelf).save(2, arrays_of(2))
    at(shelf, accepted=2).save(5, arrays_of(5))
    assert_equal(at(shelf, accepted=2).load(), 2)
    assert shelf.rounds() == {2}


@SHELVES
def test_the_state_of_the_checkpoint_stays_until_there_is_a_newer_one(make, tmp_path):
    shelf = make(tmp_path)
    for server_round in (3, 6, 9):
        at(shelf).save(server_round, arrays_of(server_round))
    assert_equal(at(shelf, accepted=9, kept=3).load(), 9)
    assert shelf.rounds() == {3, 9}
    assert_equal(at(shelf, accepted=9, kept=9).load(), 9)
    assert shelf.rounds() == {9}


@SHELVES
def test_a_state_that_is_read_before_its_round_has_ended_costs_no_other(make, tmp_path):
    shelf = make(tmp_path)
    for server_round in (2, 3, 4):
        at(shelf).save(server_round, arrays_of(server_round))
    asked = ClientState(shelf, note(accepted=4, kept=2), tidy=False)
    assert_equal(asked.load(), 4)
    assert shelf.rounds() == {2, 3, 4}


@SHELVES
def test_a_state_that_is_lost_is_an_error(make, tmp_path):
    with pytest.raises(FedhetError, match=r"round = 4: the client no longer has it; set state-dir"):
        at(make(tmp_path), accepted=4).load()


def play(shelf, events):
    """One client through the rounds of a server that drops replies, dies and resumes.

    Returns pairs of what the client loaded and what the server counted on.
    """
    server_round = accepted = 0
    saved = (server_round, accepted)
    value_of, seen = {0: None}, []
    for number, (reply, then) in enumerate(events, start=1):
        server_round += 1
        if reply != "absent":
            state = at(shelf, accepted, saved[1])
            loaded = state.load()
            seen.append((None if loaded is None else loaded["value"].item(), value_of[accepted]))
            state.save(server_round, {"value": np.array([number])})
        if reply == "used":
            accepted, value_of[server_round] = server_round, number
        if then == "checkpoint":
            saved = (server_round, accepted)
        if then == "killed":
            server_round, accepted = saved
    return seen


replies, ends = st.sampled_from(["used", "dropped", "absent"]), ["", "checkpoint", "killed"]


@given(st.lists(st.tuples(replies, st.sampled_from(ends)), max_size=12))
def test_a_client_always_has_the_state_its_server_counts_on(events):
    for loaded, counted_on in play(RecordShelf(RecordDict(), RUN), events):
        assert loaded == counted_on


def test_a_state_file_is_whole_or_not_there(tmp_path, monkeypatch):
    shelf = folder_shelf(tmp_path)
    at(shelf).save(1, arrays_of(1))

    def full_disk(tensors, metadata):
        raise OSError("no space left on device")

    monkeypatch.setattr("fedhet_app.results.save", full_disk)
    with pytest.raises(FedhetError, match="no space left"):
        at(shelf, accepted=1).save(2, arrays_of(2))
    with pytest.raises(FedhetError, match="no space left"):
        at(shelf, accepted=1).save(1, arrays_of(2))
    assert shelf.rounds() == {1}
    assert_equal(at(shelf, accepted=1).load(), 1)


def test_what_a_killed_client_left_of_a_file_does_not_count(tmp_path):
    shelf = folder_shelf(tmp_path)
    at(shelf).save(1, arrays_of(1))
    folder = tmp_path / "clients" / "3"
    (folder / "round-2.safetensors.partial").write_bytes(b"half")
    assert shelf.rounds() == {1}
    at(shelf).save(2, arrays_of(2))
    assert_equal(at(shelf, accepted=2).load(), 2)
    assert {path.name for path in folder.iterdir()} == {"round-2.safetensors"}


def test_a_damaged_file_is_one_clear_error(tmp_path):
    at(folder_shelf(tmp_path)).save(1, arrays_of(1))
    file = tmp_path / "clients" / "3" / "round-1.safetensors"
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(FedhetError, match=r"round-1.safetensors.*cannot be read"):
        at(folder_shelf(tmp_path), accepted=1).load()


def context(**node_config):
    return Context(1, 2, node_config, RecordDict(), {})


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.safetensors"))


def test_the_state_lies_in_the_run_directory_where_the_client_sees_it(tmp_path):
    run, ctx = new_token(tmp_path / "clients"), context()
    assert token_of(tmp_path / "clients") == run
    open_state(note(run=run, directory=tmp_path / "clients"), 3, ctx).save(1, arrays_of(1))
    assert files(tmp_path) == ["clients/3/round-1.safetensors"]
    assert len(ctx.state) == 0


def test_the_state_lies_in_the_folder_that_the_node_names(tmp_path):
    run, ctx = new_token(tmp_path / "clients"), context(**{"state-dir": str(tmp_path / "own")})
    open_state(note(run=run, directory=tmp_path / "clients"), 3, ctx).save(1, arrays_of(1))
    assert files(tmp_path) == [f"own/{run}/3/round-1.safetensors"]


@pytest.mark.parametrize("what", ["no folder", "no token", "another run's", "not text"])
def test_the_state_lies_in_the_context_where_the_folder_is_not_of_this_run(what, tmp_path):
    folder = tmp_path / "clients"
    if what != "no folder":
        new_token(folder)
    if what == "no token":
        (folder / ".run").unlink()
    if what == "not text":
        (folder / ".run").write_bytes(b"\xff")
    ctx = context()
    open_state(note(directory=folder), 3, ctx).save(1, arrays_of(1))
    assert files(tmp_path) == []
    assert_equal(open_state(note(accepted=1, directory=folder), 3, ctx).load(), 1)


def test_two_runs_and_two_clients_share_nothing(tmp_path):
    for ctx in (context(), context(**{"state-dir": str(tmp_path)})):
        open_state(note(run=RUN), 3, ctx).save(1, arrays_of(1))
        open_state(note(run=OTHER_RUN), 3, ctx).save(1, arrays_of(2))
        assert open_state(note(run=OTHER_RUN), 3, ctx).load() is None
        assert_equal(open_state(note(run=RUN, accepted=1), 3, ctx).load(), 1)
    with pytest.raises(FedhetError, match="no longer has it"):
        open_state(note(run=RUN, accepted=1), 4, ctx).load()


def test_two_runs_in_one_place_have_different_names(tmp_path):
    assert new_token(tmp_path) != new_token(tmp_path)


@pytest.mark.parametrize("run", ["", "../../elsewhere", "0" * 31, "0" * 31 + "/"])
def test_a_name_that_could_leave_the_folder_is_refused(run, tmp_path):
    ctx = context(**{"state-dir": str(tmp_path)})
    with pytest.raises(FedhetError, match="is no token of a run"):
        open_state(note(run=run), 3, ctx)


@pytest.mark.parametrize("value", ["relative/folder", 7, True])
def test_a_state_dir_that_is_no_absolute_path_is_refused(value):
    with pytest.raises(FedhetError, match="state-dir is an absolute path") as caught:
        state_dir(context(**{"state-dir": value}))
    assert caught.value.key == "state-dir"


def test_a_state_dir_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FedhetError, match="cannot be written to; name another folder"):
        state_dir(context(**{"state-dir": str(tmp_path / "file")}))


def test_no_state_dir_is_none():
    assert state_dir(context()) is None
    assert state_dir(context(**{"state-dir": ""})) is None


def test_states_that_are_gone_cannot_be_resumed(tmp_path):
    with pytest.raises(FedhetError, match=r"holds no .run: the clients' states are gone"):
        token_of(tmp_path)
