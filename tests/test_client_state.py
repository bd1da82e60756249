import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedhet_app.client_state import (
    ClientState,
    StateNote,
    begins_anew,
    new_token,
    open_state,
    state_dir,
    token_of,
)
from fedhet_app.errors import FedhetError
from fedhet_app.sealed import save_sealed
from fedhet_app.state_shelves import FORMAT, FolderShelf, RecordShelf

RUN, OTHER_RUN = "0" * 32, "f" * 32


def folder_shelf(tmp_path):
    return FolderShelf(tmp_path / "clients" / "3", RUN, 3, durable=True)


def record_shelf(tmp_path):
    return RecordShelf(RecordDict(), RUN)


SHELVES = pytest.mark.parametrize("make", [folder_shelf, record_shelf])


def note(accepted=0, kept=0, run=RUN, directory=""):
    return StateNote(run=run, directory=str(directory), accepted=accepted, kept=kept)


def at(shelf, accepted=0, kept=0, now=99, anew=False):
    return ClientState(shelf, note(accepted, kept), now, anew=anew)


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
    asked = at(shelf, accepted=4, kept=2, now=None)
    assert_equal(asked.load(), 4)
    assert shelf.rounds() == {2, 3, 4}


@SHELVES
def test_a_state_that_is_lost_is_an_error(make, tmp_path):
    lost = r"client state = '.*round.4.*the client no longer has it; put a copy of it back"
    with pytest.raises(FedhetError, match=lost):
        at(make(tmp_path), accepted=4, kept=4).load()


def test_without_a_state_dir_the_error_says_what_keeps_a_state():
    with pytest.raises(FedhetError, match="in memory, for want of a state-dir in the node config"):
        at(record_shelf(None), accepted=4).load()


@SHELVES
def test_a_state_that_is_lost_begins_anew_where_the_node_says_so(make, tmp_path, caplog):
    shelf = make(tmp_path)
    anew = at(shelf, accepted=4, now=6, anew=True)
    assert anew.load() is None
    assert "round" in caplog.text
    assert "is gone: begun anew" in caplog.text
    anew.save(6, arrays_of(6))
    assert at(shelf, accepted=4, now=7, anew=True).load() is None  # the reply was dropped
    at(shelf, accepted=4, now=7, anew=True).save(7, arrays_of(7))
    assert_equal(at(shelf, accepted=7, now=8, anew=True).load(), 7)


@SHELVES
def test_work_that_comes_late_costs_no_newer_version(make, tmp_path):
    """A process that hung for two rounds loads and saves; the client is at round 5 by then."""
    shelf = make(tmp_path)
    at(shelf, now=1).save(1, arrays_of(1))
    late = at(shelf, accepted=1, now=3)
    newer = at(shelf, accepted=1, kept=1, now=4)
    assert_equal(newer.load(), 1)
    newer.save(4, arrays_of(4))
    assert_equal(late.load(), 1)
    late.save(3, arrays_of(3))
    assert_equal(at(shelf, accepted=4, kept=1, now=5).load(), 4)
    assert shelf.rounds() == {1, 4}


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
            state = at(shelf, accepted, saved[1], now=server_round)
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


def state_file(tmp_path, server_round=1):
    return tmp_path / "clients" / "3" / f"round-{server_round}.safetensors"


def cut(content):
    return content[:20]


def with_one_bit_changed(content):
    return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]


def longer(content):
    return content + b"\0"


def empty(content):
    return b""


@pytest.mark.parametrize("damage", [cut, with_one_bit_changed, longer, empty])
def test_a_damaged_file_is_set_aside_and_reported(damage, tmp_path):
    at(folder_shelf(tmp_path)).save(1, arrays_of(1))
    file = state_file(tmp_path)
    damaged = damage(file.read_bytes())
    file.write_bytes(damaged)
    told = r"client state = '.*3/round-1.safetensors'.* set aside as round-1.safetensors.corrupt; "
    with pytest.raises(FedhetError, match=told + "put a copy of it back, or") as caught:
        at(folder_shelf(tmp_path), accepted=1, kept=1, anew=True).load()
    assert len(str(caught.value).splitlines()) == 1
    assert [path.name for path in file.parent.iterdir()] == ["round-1.safetensors.corrupt"]
    assert (file.parent / "round-1.safetensors.corrupt").read_bytes() == damaged
    with pytest.raises(FedhetError, match="no longer has it"):
        at(folder_shelf(tmp_path), accepted=1).load()
    assert at(folder_shelf(tmp_path), accepted=1, anew=True).load() is None


def test_a_damaged_draft_is_set_aside_and_reported(tmp_path):
    at(folder_shelf(tmp_path)).save(1, arrays_of(1))
    file = state_file(tmp_path)
    file.write_bytes(with_one_bit_changed(file.read_bytes()))
    with pytest.raises(FedhetError, match=r"SHA-256 differs\); set aside"):
        at(folder_shelf(tmp_path)).draft(1)
    assert not file.exists()


@given(st.data())
def test_no_damage_goes_unseen(data):
    with tempfile.TemporaryDirectory() as folder:
        at(folder_shelf(Path(folder))).save(1, arrays_of(1))
        file = state_file(Path(folder))
        content = file.read_bytes()
        position = data.draw(st.integers(0, len(content) - 1))
        value = data.draw(st.integers(0, 255).filter(lambda v: v != content[position]))
        file.write_bytes(content[:position] + bytes([value]) + content[position + 1 :])
        try:
            loaded = at(folder_shelf(Path(folder)), accepted=1).load()
        except FedhetError as error:
            assert "set aside" in error.remedy
        else:  # a blank for a blank between two parts of the header
            assert_equal(loaded, 1)


def test_what_the_system_does_not_let_be_read_is_not_damaged(tmp_path):
    state_file(tmp_path).mkdir(parents=True)
    with pytest.raises(FedhetError, match="cannot be read"):
        at(folder_shelf(tmp_path), accepted=1).load()
    assert state_file(tmp_path).exists()


@pytest.mark.parametrize(
    ("run", "partition", "server_round"), [(OTHER_RUN, 3, 1), (RUN, 4, 1), (RUN, 3, 2)]
)
def test_the_file_of_another_run_client_or_round_is_not_taken(
    run, partition, server_round, tmp_path
):
    other = FolderShelf(tmp_path / "other", run, partition, durable=False)
    at(other).save(server_round, arrays_of(1))
    state_file(tmp_path).parent.mkdir(parents=True)
    (tmp_path / "other" / f"round-{server_round}.safetensors").rename(state_file(tmp_path))
    with pytest.raises(FedhetError, match=r"says that it is .* set aside"):
        at(folder_shelf(tmp_path), accepted=1).load()


def test_a_file_in_another_format_is_not_taken(tmp_path):
    metadata = {"format": "fedhet-client-state-0", "run": RUN, "partition": "3", "round": "1"}
    state_file(tmp_path).parent.mkdir(parents=True)
    save_sealed(state_file(tmp_path), arrays_of(1), metadata)
    with pytest.raises(FedhetError, match=f"fedhet-client-state-0.*not .*{FORMAT}.* set aside"):
        at(folder_shelf(tmp_path), accepted=1).load()


def test_a_state_is_on_the_disk_before_it_counts(tmp_path, monkeypatch):
    """Folders, file, its name: else a power cut could leave no file, or that of an empty one."""
    done = []
    sync, rename = os.fsync, Path.replace

    def fsync(descriptor):
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def replace(path, target):
        done.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    at(folder_shelf(tmp_path)).save(1, arrays_of(1))
    to_file = ["round-1.safetensors.partial", "renamed", "3"]
    assert done == ["clients", tmp_path.name, *to_file]
    done.clear()
    at(folder_shelf(tmp_path)).save(1, arrays_of(1))
    assert done == to_file


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
            open_state(note(run=RUN, accepted=1), 4, context(**dict(ctx.node_config))).load()


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


def test_whether_a_client_may_begin_anew_is_said_by_its_node():
    assert not begins_anew(context(), "fedspm")
    assert begins_anew(context(**{"new-state": True}), "fedspm")
    assert not begins_anew(context(**{"new-state": False}), "scaffold")
    with pytest.raises(FedhetError, match="the server of scaffold holds the mean") as caught:
        begins_anew(context(**{"new-state": True}), "scaffold")
    assert caught.value.key == "new-state"
    with pytest.raises(FedhetError, match="new-state = 'yes': must be true or false"):
        begins_anew(context(**{"new-state": "yes"}), "fedspm")
