import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bare_loop import Crew, Trainer
from benchmarks.processes import finish, python
from client_apps import local
from fedhet_app import training
from fedhet_app.config import parse
from fedhet_app.submodel.aggregation import aggregate
from fedhet_app.submodel.layout import flatten
from fedhet_app.task import Task
from fedhet_app.wire import TrainRequest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
BLOCKED = ("datasets", "flwr", "flwr_datasets", "ray", "safetensors", "scipy", "sklearn")
TINY = {
    "dataset": "digits",
    "max-train-examples": 300,
    "num-clients": 4,
    "num-server-rounds": 2,
    "norm": "none",
    "batch-size": 32,
    "local-epochs": 2,
    "device": "cpu",
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDHET_CACHE", str(tmp_path / "cache"))
    return tmp_path


def script(name, *arguments, path=()):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*path, str(BENCHMARKS.parent)])}
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *arguments],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )


def test_gpu_check_passes_on_the_cpu_with_torch_and_numpy_only(tmp_path):
    block = "\n".join(f"sys.modules[{name!r}] = None" for name in BLOCKED)
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{block}\n")
    done = script("gpu_check.py", "--device", "cpu", path=[str(tmp_path)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 comparisons failed" in done.stdout
    assert "Flower is not installed" in done.stdout
    assert done.stdout.count("ok  ") == 2 * (4 * 5 + 2)  # norms, widths, checks of each


def test_gpu_check_notices_wrong_training(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    check, task = (importlib.import_module(name) for name in ("gpu_check", "gpu_task"))
    monkeypatch.setattr(training, "clip_gradient", lambda gradient, _: gradient.mul_(1.1))
    report = check.Report()
    check.check_slice(task.Bench(task.SMALL, "none"), 0.5, "cpu", report)
    assert report.failed == ["norm none, width 0.5: CPU and double precision"]


def test_gpu_check_notices_a_wrong_average(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    check, task = (importlib.import_module(name) for name in ("gpu_check", "gpu_task"))
    bench, report = task.Bench(task.SMALL, "none"), check.Report()
    slices = {
        width: task.Trained(vector=bench.start(width) + shift, loss=1.0)
        for shift, width in ((np.float32(0.5), 1.0), (np.float32(-0.5), 0.25))
    }
    check.check_average(bench, slices, report)
    assert report.failed == []

    def unweighted(vector, updates):
        return aggregate(vector, [replace(update, weight=1.0) for update in updates])

    monkeypatch.setattr(check, "aggregate", unweighted)
    check.check_average(bench, slices, report)
    assert report.failed == ["norm none: average of slices"]


@pytest.mark.usefixtures("cache")
def test_the_bare_loop_takes_the_steps_of_the_app():
    task = Task(parse(TINY))
    trainer = Trainer(task)
    steps = trainer.train(1, server_round=3)
    request = TrainRequest(server_round=3, width=1.0, vector=task.initial_vector())
    reply = local.train(task, 1, request)
    assert steps == reply.steps
    trained = flatten(trainer.model)
    update = np.linalg.norm(reply.vector - request.vector)
    assert np.linalg.norm(trained - reply.vector) < 1e-4 * update


@pytest.mark.usefixtures("cache")
def test_two_processes_train_what_one_trains():
    trainer = Trainer(Task(parse(TINY)))
    clients = [0, 1, 3]
    assert Crew(trainer, 2).train_all(clients, 1) == trainer.train_all(clients, 1)


@pytest.mark.usefixtures("cache")
def test_round_cost_compares_equal_work(cache):
    numbers = cache / "numbers.json"
    done = script(
        *("round_cost.py", "--workload", "tiny", "--engine", "inline"),
        *("--pairs", "1", "--rounds", "2", "--json", str(numbers)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(numbers.read_text())["rounds"]
    assert row["app ms"] > 0
    assert row["loop ms"] > 0
    assert "| tiny | inline | 1 |" in done.stdout


def test_bytes_are_a_header_above_the_parameters(cache):
    numbers = cache / "numbers.json"
    done = script("round_cost.py", "--workload", "tiny", "--bytes", "--json", str(numbers))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(numbers.read_text())["bytes"]
    assert [row["width"] for row in rows] == 2 * [1.0, 0.75, 0.5, 0.25]
    assert rows[0]["parameters"] == 1_558_026  # spec of CNN-A: by hand, layer by layer
    assert all(0 < row["header down"] < 1000 and 0 < row["header up"] < 1000 for row in rows)


def test_a_command_that_fails_is_named_with_what_it_said():
    with pytest.raises(RuntimeError, match=r"3\n.*no such thing"):
        finish(python("-c", "import sys; print('no such thing'); sys.exit(3)"))


def test_paper_size_tells_a_runs_hours_by_its_first_round_and_measures_once(cache):
    options = {"strategy": "fedspm", "partition": "dual", "batch-size": 16, "lr": 0.05}
    preset, kept = cache / "preset.toml", cache / "rows.json"
    values = {**options, "dataset": "digits", "num-clients": 4, "num-server-rounds": 900}
    values |= {"local-steps": 5, "evaluate-every": 300, "capacity-tiers": "1.0"}
    values |= {"capacity-probs": "1.0", "fraction-train": 1.0}
    preset.write_text("".join(f"{key} = {json.dumps(each)}\n" for key, each in values.items()))
    done = script("paper_size.py", str(preset), "--json", str(kept))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(kept.read_text())
    assert row["mib"] > 100
    assert row["examples"] == sum(Task(parse(values)).partition.sizes)
    assert row["hours"] == pytest.approx(900 * row["round"] / 3600)
    steps = 4 * (row["rest"] + 5 * row["step"]) + row["examples"] * row["pass"] / 1000
    assert row["round"] == pytest.approx(steps)
    assert script("paper_size.py", str(preset), "--json", str(kept)).stdout == done.stdout
    assert "no such preset: nowhere.toml" in script("paper_size.py", "nowhere.toml").stderr
