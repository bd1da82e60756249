import json

import numpy as np
import pytest
from running import TINY, model_bytes, run, tiny

from fedhet_app import engine
from fedhet_app.config import parse
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader, load_tensors, read_rows, run_directory, write_json

FILES = {
    "config.json",
    "partition.json",
    "rounds.jsonl",
    "clients.jsonl",
    "cost.json",
    "summary.json",
}
PROMISED = {
    "strategy",
    "dataset",
    "model",
    "seed",
    "rounds",
    "status",
    "best-accuracy",
    "final-accuracy",
    "final-loss",
    "mean-width",
    "upload-bytes",
    "download-bytes",
    "local-steps",
    "wall-seconds",
}


def test_a_finished_run_holds_every_file_and_no_other(tmp_path):
    reader = run(tmp_path / "run", strategy="has-fl", evaluate_every=2)
    names = {path.name for path in reader.directory.iterdir()}
    assert names == FILES | {"model.safetensors", "checkpoint", "cost.json"}
    summary = reader.summary
    assert set(summary) >= PROMISED
    assert (summary["status"], summary["rounds"]) == ("completed", 3)
    evaluated = [row["round"] for row in reader.rounds if "accuracy" in row]
    assert evaluated == [2, 3]
    assert summary["final-accuracy"] == reader.rounds[-1]["accuracy"]
    assert summary["best-accuracy"] == max(row.get("accuracy", 0) for row in reader.rounds)
    assert summary["mean-width"] == pytest.approx(
        np.mean([row["width"] for row in reader.clients if row["trained"]])
    )
    for direction in ("upload-bytes", "download-bytes"):
        assert summary[direction] == sum(row[direction] for row in reader.rounds)
    versions = json.loads((reader.directory / "config.json").read_text())["versions"]
    assert set(versions) >= {"fedhet", "code", "flwr", "torch"}


def test_the_cost_of_every_tier_is_on_record(tmp_path):
    reader = run(tmp_path / "run", norm="none", capacity_tiers="0.5,0.75", capacity_probs="0.5,0.5")
    assert [tier["width"] for tier in reader.cost] == [0.5, 0.75, 1.0]
    full = sum(array.size for array in reader.model().values())
    assert reader.cost[-1]["params"] == full
    assert reader.cost[-1]["bytes"] == 4 * full
    assert reader.cost[0]["macs"] < reader.cost[1]["macs"] < reader.cost[2]["macs"]


def test_the_floats_of_every_slice_are_on_record(tmp_path):
    reader = run(tmp_path / "run", strategy="heterofl", num_clients=6, fraction_train=1.0)
    for row in reader.rounds:
        floats = sum(c["floats"] for c in reader.clients if c["round"] == row["round"])
        assert 0 <= row["download-bytes"] - 4 * floats < 300 * 6
        assert 0 <= row["upload-bytes"] - 4 * floats < 300 * 6


def test_a_part_of_the_test_set_is_measured_before_the_last_round(tmp_path):
    whole = run(tmp_path / "whole", evaluate_every=1)
    part = run(tmp_path / "part", evaluate_every=1, evaluate_examples=50)
    assert model_bytes(whole) == model_bytes(part)
    assert part.rounds[-1]["accuracy"] == whole.rounds[-1]["accuracy"]
    assert part.rounds[-1]["loss"] == whole.rounds[-1]["loss"]
    for row in part.rounds[:-1]:
        assert row["accuracy"] * 50 == pytest.approx(round(row["accuracy"] * 50))
    assert part.rounds[0]["loss"] != whole.rounds[0]["loss"]


def test_bytes_follow_the_slices(tmp_path):
    reader = run(tmp_path / "run", strategy="heterofl", norm="none", fraction_train=1.0)
    full = sum(array.size for array in reader.model().values())
    rows = [row for row in reader.clients if row["round"] == 1]
    for direction in ("upload-bytes", "download-bytes"):
        lower = sum(4 * full * row["width"] ** 2 for row in rows)
        assert lower < reader.rounds[0][direction] < 1.15 * lower


def test_a_directory_that_holds_a_run_is_refused_and_kept(tmp_path):
    reader = run(tmp_path / "run")
    before = {path: path.read_bytes() for path in reader.directory.rglob("*") if path.is_file()}
    with pytest.raises(FedhetError, match="already holds a run; name another") as caught:
        run(tmp_path / "run", seed=1)
    assert caught.value.key == "results-dir"
    assert before == {
        path: path.read_bytes() for path in reader.directory.rglob("*") if path.is_file()
    }


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for directory in (file, file / "run", file / "a" / "b"):
        with pytest.raises(FedhetError, match="cannot be written to") as caught:
            run(directory)
        assert caught.value.key == "results-dir"
    assert file.read_text() == ""


@pytest.mark.parametrize(
    "options",
    [
        {"dataset": "fashion-mnist", "data_dir": "/nonexistent"},
        {"num_clients": 500},
        {"model": "nowhere.to:build"},
        {"strategy": "random-budget", "random_budget__match": "/nonexistent"},
    ],
)
def test_nothing_is_left_of_a_run_that_cannot_start(options, tmp_path):
    with pytest.raises(FedhetError):
        run(tmp_path / "run", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_relative_directory_is_refused_by_the_app():
    config = tiny("results")
    with pytest.raises(FedhetError, match="must be an absolute path: Flower runs") as caught:
        engine.run(config, engine="inline")
    assert caught.value.key == "results-dir"


def test_without_a_directory_the_name_tells_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = run_directory(tiny("", dataset="hub:me/images", seed=3))
    assert directory.is_absolute()
    assert directory.parent == tmp_path / "results"
    assert directory.name.startswith("hub-me-images-fedavg-seed3-")


def test_the_config_of_a_run_repeats_it(tmp_path):
    reader = run(tmp_path / "run")
    assert reader.config["num-clients"] == TINY["num-clients"]
    assert reader.config["results-dir"] == str(tmp_path / "run")


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(FedhetError, match=r"holds no config.json: not a run"):
        RunReader(tmp_path)
    write_json(tmp_path / "config.json", {"config": {}})
    with pytest.raises(FedhetError, match="has not finished; continue it with --resume"):
        RunReader(tmp_path).model()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FedhetError, match=r"config.json.*cannot be read"):
        _ = RunReader(tmp_path).config


def test_a_model_file_that_is_not_whole_is_refused(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\x00" * 20)
    with pytest.raises(FedhetError, match="cannot be read"):
        load_tensors(file)


def test_a_last_line_without_end_is_left_out(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"round": 1}\n{"round": 2}\n{"round": 3')
    assert read_rows(file) == [{"round": 1}, {"round": 2}]
    assert read_rows(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize("key", ["results-dir", "data-dir", "random-budget.match"])
def test_a_relative_path_is_refused_where_flower_runs_the_app(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"strategy": "random-budget"} if "match" in key else {"dataset": "fashion-mnist"}
    config = parse({**tiny(tmp_path / "run", **options).flat(), key: "somewhere"})
    with pytest.raises(FedhetError, match="must be an absolute path") as caught:
        engine.run(config, engine="inline")
    assert caught.value.key == key
    assert list(tmp_path.iterdir()) == []
