import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from running import TINY, model_bytes, outcome, run, tiny
from typer.main import get_command

from fedhet_app import checkpoint, cli
from fedhet_app.models import builder_for
from fedhet_app.results import RunReader, load_tensors
from fedhet_app.task import Task

FEDHET = str(Path(sys.executable).with_name("fedhet"))
PLAIN = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def small(**options):
    """Return what ``--set`` takes for a short run, with options of its own."""
    own = {key.replace("_", "-"): value for key, value in options.items()}
    return " ".join(f"{key}={value}" for key, value in {**TINY, **own}.items())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    options = {"strategy": "has-fl", "num_server_rounds": 4, "local_steps": 20, "evaluate_every": 1}
    return run(tmp_path_factory.mktemp("finished") / "run", **options)


def command(*arguments, cwd):
    return subprocess.run(
        [FEDHET, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **PLAIN},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


MISTAKES = {
    "unknown key": (["run", "--set", "strategyy=x"], "strategyy = 'x': unknown key; did you mean"),
    "unknown strategy": (["run", "--set", "strategy=x"], "strategy = 'x': must be one of fedavg"),
    "wrong type": (["run", "--set", "lr='0.1'"], "lr = '0.1': must be a number, without quotes"),
    "out of range": (["run", "--set", "momentum=1"], "momentum = 1: must be in"),
    "no pair": (["run", "--set", "lr"], "--set = 'lr': must be key=value pairs"),
    "missing preset": (["run", "none.toml"], "preset = 'none.toml': cannot be read"),
    "unknown engine": (
        ["run", "--engine", "spark"],
        "--engine = 'spark': must be one of ray, inline",
    ),
    "nothing to resume": (["run", "--resume", "none"], "run directory = 'none': holds no config"),
    "nothing to evaluate": (["evaluate", "none"], "run directory = 'none': holds no config.json"),
    "nothing to export": (["export", "none", "x"], "run directory = 'none': holds no config.json"),
    "no data": (
        ["run", "--engine", "inline", "--set", "dataset=fashion-mnist data-dir=none"],
        "data-dir = ",
    ),
    "too many clients": (
        ["run", "--engine", "inline", "--set", "num-clients=5000"],
        "num-clients = 5000: ",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(mistake, fedhet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, message = MISTAKES[mistake]
    status, out, err = fedhet(*arguments)
    assert status == 2
    (line,) = [each for each in (out + err).splitlines() if each.startswith("error: ")]
    assert line.startswith(f"error: {message}")
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(get_command(cli.app).commands))
def test_the_help_of_a_command_tells_what_its_arguments_are(name, fedhet):
    status, out, _ = fedhet(name, "--help")
    assert status == 0
    usage, told = out.partition("Arguments")[0].strip().split("\n", 1)
    arguments = re.findall(r"[A-Z]+", usage.partition("[OPTIONS]")[2])
    assert arguments
    for argument in arguments:
        assert re.search(rf"\b{argument}\b", told)


def test_a_run_that_is_finished_has_nothing_to_resume_and_says_so(fedhet, finished):
    weights = (finished.directory / "model.safetensors").read_bytes()
    status, out, _ = fedhet("run", "--engine", "inline", "--resume", finished.directory)
    assert status == 0
    assert "all its rounds are done already" in out
    assert (finished.directory / "model.safetensors").read_bytes() == weights


def test_resume_takes_its_config_from_the_run(fedhet, finished, tmp_path):
    preset = tmp_path / "preset.toml"
    preset.write_text("lr = 0.1\n")
    for more in ([preset], ["--results", tmp_path / "elsewhere"]):
        status, _, err = fedhet("run", *more, "--resume", finished.directory)
        assert status == 2
        assert "give no preset and no --results with it" in err


def test_status_and_streams_of_the_installed_command(tmp_path):
    wrong = command("run", "--set", "lr=-1", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "error: lr = -1: must be above 0\n"
    assert command("run", "--no-such-option", cwd=tmp_path).returncode == 2
    assert command("--help", cwd=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_run_ends_with_its_table_and_directory(tmp_path):
    preset = tmp_path / "preset.toml"
    preset.write_text('strategy = "has-fl"\nnum-server-rounds = 9\n[has-fl]\ngamma = 0.1\n')
    pairs = small(evaluate_every=1).removeprefix("strategy=fedavg ")
    done = command("run", preset, "--engine", "inline", "--set", pairs, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    directory = Path(done.stdout.splitlines()[-1])
    assert directory.parent == tmp_path / "results"
    reader = RunReader(directory)
    assert reader.config["strategy"] == "has-fl"
    assert reader.config["has-fl.gamma"] == 0.1
    assert reader.config["num-server-rounds"] == TINY["num-server-rounds"]
    assert f"{reader.summary['final-accuracy']:.4f}" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_users_own_network_in_the_working_directory_is_found(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\n"
        "def build(width, spec):\n"
        "    hidden = max(1, round(8 * width))\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(),\n"
        "                         nn.Linear(hidden, spec.num_classes))\n"
    )
    pairs = small(strategy="heterofl", model="mine:build")
    done = command("run", "--engine", "inline", "--results", "out", "--set", pairs, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shapes = {name: array.shape for name, array in RunReader(tmp_path / "out").model().items()}
    assert shapes == {"1.weight": (8, 64), "1.bias": (8,), "3.weight": (10, 8), "3.bias": (10,)}


def test_a_dry_run_shows_the_cost_of_each_tier_and_writes_nothing(fedhet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, _ = fedhet(
        "run",
        "--dry-run",
        "--set",
        "norm=none capacity-tiers=0.5,1.0 capacity-probs=0.5,0.5 lr=0.25 seed=9",
    )
    assert status == 0
    assert "lr = 0.25" in out
    assert "seed = 9" in out
    full = sum(k * (9 * c + 1) for c, k in ((1, 16), (16, 32), (32, 64), (64, 128))) + 129 * 10
    half = sum(k * (9 * c + 1) for c, k in ((1, 8), (8, 16), (16, 32), (32, 64))) + 65 * 10
    for parameters in (full, half):
        assert f"{parameters:,}" in out
        assert f"{4 * parameters:,}" in out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_refuses_what_a_run_would(fedhet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = fedhet("run", "--dry-run", "--set", "alpha=0")
    assert status == 2
    assert "alpha = 0: must be above 0" in err


def test_a_dry_run_tells_of_a_network_that_does_not_fit_the_data(fedhet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "misfit.py").write_text(
        "from torch import nn\n\n\n"
        "def build(width, spec):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(5, spec.num_classes))\n"
    )
    status, out, err = fedhet("run", "--dry-run", "--set", "model=misfit:build")
    assert status == 2
    assert err.startswith("error: model = 'build': its forward fails for examples of shape")
    assert "Traceback" not in out + err


def shown(out):
    return float(re.search(r"accuracy ([\d.]+)", out)[1])


def test_evaluate_repeats_the_accuracies_of_the_run(fedhet, finished):
    status, out, _ = fedhet("evaluate", finished.directory)
    assert status == 0
    assert shown(out) == pytest.approx(finished.summary["final-accuracy"], abs=5e-5)
    by_width = finished.rounds[-1]["slice-accuracy"]
    assert len({round(accuracy, 4) for accuracy in by_width.values()}) > 1
    for width, accuracy in by_width.items():
        _, out, _ = fedhet("evaluate", finished.directory, "--width", width)
        assert shown(out) == pytest.approx(accuracy, abs=5e-5)


@pytest.mark.parametrize("width", ["0", "1.5", "nan"])
def test_a_width_is_above_0_and_at_most_1(width, fedhet, finished, tmp_path):
    target = tmp_path / "slice.safetensors"
    for arguments in (["evaluate", finished.directory], ["export", finished.directory, target]):
        status, _, err = fedhet(*arguments, "--width", width)
        assert status == 2
        assert "--width = " in err
    assert not target.exists()


@pytest.mark.parametrize("width", [0.5, 1.0])
def test_an_exported_slice_is_the_network_of_its_width(width, fedhet, finished, tmp_path):
    file = tmp_path / "slice.safetensors"
    status, out, _ = fedhet("export", finished.directory, file, "--width", width)
    assert (status, out) == (0, f"{file}\n")
    import torch

    tensors, metadata = load_tensors(file)
    config = tiny(tmp_path)
    task = Task(config)
    module = builder_for("cnn")(width, task.spec)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
    assert metadata["width"] == str(width)
    assert metadata["num-classes"] == "10"
    mean, std = (float(metadata[key].strip("[]")) for key in ("mean", "std"))
    test = task.dataset.test
    inputs = (torch.from_numpy(np.array(test.inputs)).float() - mean) / std
    predicted = module.eval()(inputs.permute(0, 3, 1, 2)).argmax(dim=1).numpy()
    expected = finished.rounds[-1]["slice-accuracy"][f"{width:g}"]
    assert np.mean(predicted == test.labels) == pytest.approx(expected, abs=1e-9)


def test_an_export_needs_a_folder_that_is_there(fedhet, finished, tmp_path):
    status, _, err = fedhet("export", finished.directory, tmp_path / "none" / "slice.safetensors")
    assert status == 2
    assert "cannot be written" in err


def test_an_unfinished_run_cannot_be_evaluated(fedhet, finished, tmp_path):
    (tmp_path / "config.json").write_bytes((finished.directory / "config.json").read_bytes())
    status, _, err = fedhet("evaluate", tmp_path)
    assert status == 2
    assert "the run has not finished; continue it with --resume" in err


LONG = {"num_server_rounds": 100, "local_steps": 3}


def interrupt(directory, engine, rows, number=signal.SIGINT):
    """Start a long run, signal it after some rounds; return process, output and children."""
    pairs = small(num_server_rounds=100, local_steps=3, checkpoint_every=0)
    arguments = ["run", "--engine", engine, "--results", str(directory), "--set", pairs]
    process = subprocess.Popen(
        [FEDHET, *arguments],
        env={**os.environ, **PLAIN},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    file = directory / "rounds.jsonl"
    give_up = time.monotonic() + 100
    while not file.exists() or file.read_text().count("\n") < rows:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < give_up
        time.sleep(0.01)
    children = descendants(process.pid)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    output, _ = process.communicate(timeout=100)
    return process, output, children


def descendants(pid):
    """Return pid and start time of every process below one."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = (int(fields[1]), fields[19])
    found, todo = set(), {pid}
    while todo:
        todo = {child for child, (parent, _) in parents.items() if parent in todo}
        found |= todo
    return {(child, parents[child][1]) for child in found}


def still_there(processes):
    alive = set()
    for pid, started in processes:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[19] == started and fields[0] != "Z":
            alive.add(pid)
    return alive


def assert_ended_well_and_resumes(directory, process, output, tmp_path):
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert (directory / checkpoint.FILE).exists()
    assert 0 < len(RunReader(directory).rounds) < 100
    whole = run(tmp_path / "whole", **LONG)
    resumed = command("run", "--engine", "inline", "--resume", directory, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert model_bytes(RunReader(directory)) == model_bytes(whole)
    assert outcome(RunReader(directory)) == outcome(whole)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_keeps_the_checkpoint(tmp_path):
    directory = tmp_path / "run"
    process, output, _ = interrupt(directory, "inline", rows=3)
    assert_ended_well_and_resumes(directory, process, output, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_process_of_ray_behind(number, tmp_path):
    directory = tmp_path / "run"
    process, output, children = interrupt(directory, "ray", rows=3, number=number)
    assert len(children) > 2
    give_up = time.monotonic() + 20
    while still_there(children) and time.monotonic() < give_up:
        time.sleep(0.2)
    assert not still_there(children)
    assert_ended_well_and_resumes(directory, process, output, tmp_path)


def test_packages_of_the_same_name_in_the_working_directory_are_not_taken(tmp_path):
    clash = tmp_path / "strategies" / "__init__.py"
    clash.parent.mkdir()
    clash.write_text("raise RuntimeError('another package')\n")
    done = command("run", "--engine", "inline", "--set", small(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
