"""A disk that is full, by the kernel's own word: what is written to /dev/full meets ENOSPC."""

from pathlib import Path

import numpy as np
import pytest
from running import interrupted, outcome, run

from fedhet_app import checkpoint
from fedhet_app.errors import FedhetError
from fedhet_app.results import CLIENTS, MODEL, ROUNDS, RunReader, round_observer, save_tensors
from fedhet_app.sealed import load_sealed

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")

OPTIONS = {"num_server_rounds": 4, "checkpoint_every": 1}


def fill(path):
    """Let the next whole file at ``path`` find no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(path.name + ".partial").symlink_to("/dev/full")


def run_while(directory, change, **options):
    """Run; ``change`` is called with the number of a round when its row is written."""
    token = round_observer.set(lambda row: change(row["round"]))
    try:
        return run(directory, **{**OPTIONS, **options})
    finally:
        round_observer.reset(token)


def round_of(directory):
    metadata = load_sealed(directory / checkpoint.FILE)[1]
    return metadata["state"].split(",")[0]


def test_a_run_outlives_a_checkpoint_that_finds_no_room(tmp_path, caplog):
    directory, kept = tmp_path / "run", {}

    def change(number):
        if number > 1:
            kept[number] = round_of(directory)
        if number == 2:
            fill(directory / checkpoint.FILE)

    reader = run_while(directory, change)
    assert kept == {2: '{"round": 1', 3: '{"round": 1', 4: '{"round": 3'}
    warning = "no checkpoint of round 2, that of round 1 stays: file = "
    assert warning in caplog.text
    assert "No space left on device" in caplog.text
    assert caplog.text.count("no checkpoint of") == 1
    assert outcome(reader) == outcome(run(tmp_path / "roomy", **OPTIONS))


def test_a_run_killed_on_a_full_disk_resumes_from_the_checkpoint_before(tmp_path):
    directory = tmp_path / "run"

    def change(number):
        if number == 2:
            fill(directory / checkpoint.FILE)
        if number == 3:
            fill(directory / checkpoint.FILE)  # for the checkpoint on the way out
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_while(directory, change)
    assert round_of(directory) == '{"round": 1'
    resumed = run(directory, resume=True, **OPTIONS)
    assert outcome(resumed) == outcome(run(tmp_path / "unbroken", **OPTIONS))


def test_a_run_that_cannot_write_its_first_checkpoint_does_not_start(tmp_path):
    fill(tmp_path / "run" / checkpoint.FILE)
    with pytest.raises(FedhetError, match=r"state.safetensors.*No space left on device.*make room"):
        run(tmp_path / "run", **OPTIONS)
    assert RunReader(tmp_path / "run").rounds == []


@pytest.mark.parametrize("name", [ROUNDS, CLIENTS])
def test_a_run_that_cannot_write_its_rows_ends_with_one_clear_error(name, tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / name).symlink_to("/dev/full")
    with pytest.raises(FedhetError, match=r"No space left on device.*make room, and continue"):
        run(directory, **OPTIONS)
    assert round_of(directory) == '{"round": 0'


def test_a_model_that_finds_no_room_is_one_clear_error_and_can_be_written_later(tmp_path):
    directory = tmp_path / "run"
    fill(directory / MODEL)
    with pytest.raises(FedhetError, match=r"model.safetensors.*No space left on device"):
        run(directory, **OPTIONS)
    resumed = run(directory, resume=True, **OPTIONS)
    assert outcome(resumed) == outcome(run(tmp_path / "roomy", **OPTIONS))


def test_what_finds_no_room_takes_none(tmp_path):
    old = {"x": np.arange(3)}
    save_tensors(tmp_path / "file", old, {})
    fill(tmp_path / "file")
    with pytest.raises(FedhetError, match="No space left"):
        save_tensors(tmp_path / "file", {"x": np.arange(9)}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_damage_to_a_checkpoint_is_seen(tmp_path):
    reader = interrupted(tmp_path / "run", 3, **OPTIONS)
    file = reader.directory / checkpoint.FILE
    content = bytearray(file.read_bytes())
    content[-2] ^= 4
    file.write_bytes(content)
    with pytest.raises(
        FedhetError, match=r"checkpoint = .* is not what was written.*start the run again"
    ):
        run(tmp_path / "run", resume=True, **OPTIONS)
