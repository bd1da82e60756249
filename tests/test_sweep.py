import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from running import TINY, interrupted, outcome, run

from fedhet_app import checkpoint, cli
from fedhet_app.config import parse
from fedhet_app.engine import sweep as sweep_module
from fedhet_app.engine.sweep import sweep
from fedhet_app.engine.workers import Workers
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader, load_tensors
from fedhet_app.suite_results import (
    Failure,
    claimed,
    rounds_done,
    stage_of,
    to_go_on,
    write_manifest,
)
from fedhet_app.suites import Suite, SuiteRun, load_suite
from fedhet_app.sweep_display import SweepDisplay, failure_table

FEDHET = str(Path(sys.executable).with_name("fedhet"))
BASE = {key: value for key, value in TINY.items() if key != "strategy"}
ADAPTING = {"warmup": 0, "adapt-every": 1}
SUITE = {
    "name": "small",
    "base": BASE,
    "seeds": [5],
    "runs": {
        "control": {
            "strategy": "random-budget",
            "random-budget": {**ADAPTING, "match": "@has-fl"},
        },
        "has-fl": {"strategy": "has-fl", "has-fl": ADAPTING},
        "stopped": {"strategy": "heterofl", "num-server-rounds": 5},
        "broken": {"strategy": "heterofl", "model": "spoilt:broken"},
        "dies": {"strategy": "has-fl", "model": "spoilt:dies"},
        "orphan": {"strategy": "random-budget", "random-budget.match": "@dies"},
        "last": {"strategy": "fedavg"},
    },
}
SPOILT = """
import os

def broken(width, spec):
    raise ValueError("no [bold] network")

def dies(width, spec):
    os._exit(3)
"""


def one_run_suite(results, **options):
    values = {**TINY, **options, "results-dir": str(results / "a" / "seed1"), "seed": 1}
    only = SuiteRun(label="a", config=parse(values), needs=frozenset())
    return Suite(name="one", results=results, runs=(only,))


def written(folder, suite=SUITE):
    file = folder / "suite.yaml"
    file.write_text(json.dumps(suite))  # JSON is YAML
    return file


def environment():
    return {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep with failures of every kind, and one run that was stopped before."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "spoilt.py").write_text(SPOILT)
    stopped = folder / "out" / "stopped" / "seed5"
    interrupted(stopped, 3, strategy="heterofl", num_server_rounds=5, seed=5)
    done = subprocess.run(
        [FEDHET, "sweep", written(folder), "--jobs", "2", "--results", "out"],
        cwd=folder,
        env=environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done, folder / "out"


def test_failures_do_not_stop_the_others_and_status_is_1(swept):
    done, results = swept
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == str(results)
    assert "Traceback" not in done.stdout + done.stderr
    assert "raylet" not in done.stdout + done.stderr
    for label in ("control", "has-fl", "stopped", "last"):
        summary = RunReader(results / label / "seed5").summary
        assert summary["status"] == "completed"
        line = f"{label} seed 5: accuracy {summary['final-accuracy']:.4f}, "
        assert sum(each.startswith(line) for each in done.stdout.splitlines()) == 1
    for label in ("broken", "dies", "orphan"):
        assert not (results / label / "seed5" / "summary.json").exists()
    assert "(7 of 7 runs" in done.stdout


@pytest.mark.parametrize(
    ("label", "reason", "log"),
    [
        ("broken", "no [bold] network", "no [bold] network"),
        ("dies", "its worker process died: it was killed, or crashed", "its worker process died"),
        ("orphan", "not run, because it needs dies seed 5", None),
    ],
)
def test_a_failure_is_listed_with_its_reason_and_log(swept, label, reason, log):
    done, results = swept
    (line,) = [each for each in done.stdout.splitlines() if each.startswith(f"{label} seed 5: ")]
    assert line.startswith(f"{label} seed 5: failed: ")
    assert reason in line
    table = done.stdout[done.stdout.index("Runs that failed") :]
    assert f" {label} " in table
    if log:
        assert f"{label}/seed5/log.txt" in table
        assert log in (results / label / "seed5" / "log.txt").read_text()


def test_a_run_of_a_sweep_has_the_bits_of_one_that_runs_alone(swept, tmp_path):
    _, results = swept
    adapting = {"has_fl__warmup": 0, "has_fl__adapt_every": 1, "random_budget__warmup": 0}
    options = {**adapting, "random_budget__adapt_every": 1, "seed": 5}
    alone = run(tmp_path / "has-fl", strategy="has-fl", **options)
    assert outcome(RunReader(results / "has-fl" / "seed5")) == outcome(alone)
    match = {"random_budget__match": str(tmp_path / "has-fl")}
    control = run(tmp_path / "control", strategy="random-budget", **options, **match)
    assert outcome(RunReader(results / "control" / "seed5")) == outcome(control)


def test_a_stopped_run_is_continued_to_the_bits_of_an_unbroken_one(swept, tmp_path):
    _, results = swept
    whole = run(tmp_path / "whole", strategy="heterofl", num_server_rounds=5, seed=5)
    resumed = RunReader(results / "stopped" / "seed5")
    assert resumed.config["resume"] is True
    assert outcome(resumed) == outcome(whole)


def test_the_log_of_a_run_is_in_its_directory(swept):
    _, results = swept
    log = (results / "last" / "seed5" / "log.txt").read_text()
    assert "INFO fedavg: 6 clients" in log


def test_the_manifest_lists_every_run(swept):
    _, results = swept
    manifest = json.loads((results / "suite.json").read_text())
    assert manifest["name"] == "small"
    assert [row["label"] for row in manifest["runs"]] == list(SUITE["runs"])
    for row in manifest["runs"]:
        assert row["directory"] == f"{row['label']}/seed5"
    ran = RunReader(results / "last" / "seed5")
    (row,) = [row for row in manifest["runs"] if row["label"] == "last"]
    assert row["config"] == ran.config


def contents(folder):
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def test_what_is_finished_is_not_run_again(swept, fedhet, monkeypatch):
    _, results = swept

    def refuse(*_):
        raise AssertionError("workers were started")

    monkeypatch.setattr(sweep_module, "Workers", refuse)
    before = contents(results / "control") | contents(results / "last")
    file = results.parent / "suite.yaml"
    names = ["--only", "control", "--only", "last"]
    status, out, err = fedhet("sweep", file, "--results", results, *names)
    assert status == 0, err
    assert out == f"3 of 3 runs were finished before\n{results}\n"
    assert contents(results / "control") | contents(results / "last") == before


def test_another_configuration_is_refused_before_anything_runs(swept, fedhet, tmp_path):
    _, results = swept
    changed = {**SUITE, "base": {**BASE, "lr": 0.5}}
    before = contents(results)
    status, _, err = fedhet("sweep", written(tmp_path, changed), "--results", results)
    assert status == 2
    (line,) = err.splitlines()
    assert line.startswith("error: lr = 0.5: control seed 5 was run with 0.05 in ")
    assert line.endswith("; name another --results, or remove that directory")
    assert contents(results) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "0"], "error: --jobs = 0: must be at least 1"),
        (["--only", "hasfl"], "error: --only = 'hasfl': unknown; did you mean has-fl?"),
        (["--seed", "9"], "error: --seed = 9: unknown; known are 5"),
    ],
)
def test_a_mistake_on_the_command_line_leaves_nothing(arguments, message, fedhet, tmp_path):
    file = written(tmp_path)
    status, _, err = fedhet("sweep", file, "--results", tmp_path / "out", *arguments)
    assert status == 2
    assert err.startswith(message)
    assert list(tmp_path.iterdir()) == [file]


def test_a_wrong_key_in_any_run_stops_before_anything_runs(fedhet, tmp_path):
    wrong = {**SUITE, "runs": {**SUITE["runs"], "late": {"strategyy": "fedavg"}}}
    file = written(tmp_path, wrong)
    status, _, err = fedhet("sweep", file, "--results", tmp_path / "out")
    assert status == 2
    assert err.startswith("error: strategyy = 'fedavg': unknown key; did you mean strategy")
    assert err.endswith(f"(in run late, seed 5, of {file})\n")
    assert list(tmp_path.iterdir()) == [file]


def test_an_interrupted_sweep_says_how_to_go_on(fedhet, tmp_path, monkeypatch):
    def press(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep_module, "sweep", press)
    file = written(tmp_path)
    status, _, err = fedhet("sweep", file, "--results", tmp_path / "my out", "--jobs", 2)
    assert status == 130
    expected = f"continue with: fedhet sweep {file} --results '{tmp_path / 'my out'}' --jobs 2"
    assert expected in err


def test_a_run_is_new_begun_or_finished(tmp_path):
    (only,) = one_run_suite(tmp_path).runs
    assert stage_of(only) == "new"
    interrupted(only.directory, 3, seed=1)
    assert stage_of(only) == "begun"
    run(only.directory, resume=True, seed=1)
    assert stage_of(only) == "finished"
    assert rounds_done(only) == 3


def test_keys_that_touch_no_result_and_new_options_make_no_other_run(tmp_path):
    (only,) = one_run_suite(tmp_path).runs
    run(only.directory, seed=1)
    file = only.directory / "config.json"
    content = json.loads(file.read_text())
    content["config"] |= {"results-dir": "/elsewhere", "round-timeout": 9.0}
    del content["config"]["has-fl.gamma"]
    file.write_text(json.dumps(content))
    assert stage_of(only) == "finished"
    content["config"]["momentum"] = 0.25
    file.write_text(json.dumps(content))
    with pytest.raises(FedhetError, match=r"momentum = 0.9: a seed 1 was run with 0.25 in .*a/se"):
        stage_of(only)


def test_results_that_have_moved_are_the_same_runs(tmp_path):
    options = {"strategy": "has-fl", "has_fl__warmup": 0, "has_fl__adapt_every": 1, "seed": 5}
    run(tmp_path / "old" / "has-fl" / "seed5", **options)
    match = {"random_budget__match": str(tmp_path / "old" / "has-fl" / "seed5")}
    options = {"random_budget__warmup": 0, "random_budget__adapt_every": 1, "seed": 5}
    control = tmp_path / "old" / "control" / "seed5"
    run(control, strategy="random-budget", **options, **match)
    (tmp_path / "old").rename(tmp_path / "new")
    suite = load_suite(written(tmp_path), tmp_path / "new")
    assert [stage_of(each) for each in suite.select(["control"], [])] == ["finished", "finished"]
    other = tmp_path / "new" / "other" / "seed5"
    (tmp_path / "new" / "has-fl").rename(other.parent)
    text = json.dumps(SUITE).replace("has-fl", "other").replace('"other",', '"has-fl",')
    file = tmp_path / "other.yaml"
    file.write_text(text.replace('"other": {"warmup"', '"has-fl": {"warmup"'))
    with pytest.raises(FedhetError, match=r"random-budget.match = .*other/seed5"):
        stage_of(load_suite(file, tmp_path / "new").select(["control"], [])[0])


def test_a_run_goes_on_from_its_checkpoint_and_starts_anew_without_one(tmp_path):
    (only,) = one_run_suite(tmp_path).runs
    assert to_go_on(only) == only.config
    interrupted(only.directory, 3, seed=1)
    assert to_go_on(only).resume
    (only.directory / checkpoint.FILE).unlink()
    assert to_go_on(only).resume  # rounds without a checkpoint: for the user to look at
    (only.directory / "rounds.jsonl").write_text("")
    assert to_go_on(only) == only.config
    assert stage_of(only) == "new"


def test_two_sweeps_do_not_share_a_folder(tmp_path):
    with (
        claimed(tmp_path / "out"),
        pytest.raises(FedhetError, match=r"--results = .*out': another sweep is at work there"),
        claimed(tmp_path / "out"),
    ):
        pass
    with claimed(tmp_path / "out"):
        pass


def test_a_claim_dies_with_its_process(tmp_path):
    code = (
        "import sys, time; from pathlib import Path\n"
        "from fedhet_app.suite_results import claimed\n"
        "with claimed(Path(sys.argv[1])):\n"
        "    print('claimed', flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    root = Path(cli.__file__).resolve().parents[1]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "claimed\n"
        with pytest.raises(FedhetError, match="another sweep is at work there"), claimed(tmp_path):
            pass
        process.kill()
    with claimed(tmp_path):
        pass


def test_results_of_another_suite_or_a_run_are_refused(tmp_path):
    suite = one_run_suite(tmp_path)
    write_manifest(suite)
    write_manifest(suite)
    other = Suite(name="two", results=tmp_path, runs=suite.runs)
    with pytest.raises(FedhetError, match="holds the results of the suite one, not two"):
        write_manifest(other)
    assert json.loads((tmp_path / "suite.json").read_text())["name"] == "one"
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FedhetError, match="already holds a run"), claimed(tmp_path):
        pass


class NoProcesses:
    """Stands in for worker processes: keeps what was started, and ends it in a given order."""

    def __init__(self, jobs, pick, failing):
        self.jobs, self.pick, self.failing = jobs, pick, failing
        self.running, self.events = [], []

    def __call__(self, configs, jobs):
        self.asked = len(configs)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def start(self, key, config):
        self.running.append((key, Path(config.results_dir)))
        self.events.append(("start", key))
        assert len(self.running) <= self.jobs

    def ended(self, timeout):
        key, directory = self.running.pop(self.pick(len(self.running)))
        self.events.append(("end", key))
        if key in self.failing:
            return {key: "reason"}
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text("{}")
        summary = {"status": "completed", "final-accuracy": 0.5, "wall-seconds": 1.0}
        (directory / "summary.json").write_text(json.dumps(summary))
        return {key: ""}


@given(data=st.data(), jobs=st.integers(1, 4))
def test_any_suite_is_worked_off_in_the_order_of_its_needs(data, jobs, tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    size = data.draw(st.integers(1, 7))
    order = data.draw(st.permutations(range(size)))
    rank = {number: place for place, number in enumerate(order)}
    runs = []
    for number in range(size):
        earlier = [other for other in range(size) if rank[other] < rank[number]]
        needs = data.draw(st.sets(st.sampled_from(earlier), max_size=2)) if earlier else set()
        directory = str(results / str(number) / "seed42")
        config = parse({"strategy": "fedavg", "results-dir": directory})
        runs.append(SuiteRun(label=str(number), config=config, needs=frozenset(map(str, needs))))
    failing = {run.key for run in runs if data.draw(st.booleans())}
    lost = set(failing)
    for number in order:
        if runs[number].needed & lost:
            lost.add(runs[number].key)
    pick = lambda count: data.draw(st.integers(0, count - 1))  # noqa: E731
    workers = NoProcesses(jobs, pick, failing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_module, "Workers", workers)
        display = SweepDisplay(Console(file=io.StringIO()))
        suite = Suite(name="any", results=results, runs=tuple(runs))
        failures = sweep(suite, runs, jobs=None, display=display)
    assert len(failures) == len(lost)
    assert {failure.run.key for failure in failures} == lost
    reasons = {failure.run.key: failure.reason for failure in failures}
    for each in runs:
        reachable = each.needed.isdisjoint(lost)
        assert (("start", each.key) in workers.events) == reachable
        if reachable:
            started = workers.events.index(("start", each.key))
            assert all(("end", key) in workers.events[:started] for key in each.needed)
        elif each.key in reasons:
            assert reasons[each.key].startswith("not run, because it needs ")


class Recorder:
    """A display that keeps what it was told."""

    def __init__(self):
        self.seen = []

    def showing(self, **counts):
        self.seen.append(counts)
        return SweepDisplay(Console(file=io.StringIO())).showing(**counts)

    def rounds(self, done, total):
        self.seen.append((done, total))

    def finished(self, run, summary):
        self.seen.append(f"{run} finished")

    def failed(self, run, reason):
        self.seen.append(f"{run} failed")


def test_the_display_is_told_of_rounds_done_and_of_those_no_longer_to_come(tmp_path, monkeypatch):
    runs = []
    for label, rounds, needs in (("a", 10, ""), ("b", 20, ""), ("c", 40, "b")):
        directory = tmp_path / label / "seed42"
        values = {"results-dir": str(directory), "num-server-rounds": rounds}
        config = parse({"strategy": "fedavg", **values})
        runs.append(SuiteRun(label=label, config=config, needs=frozenset(needs)))
        if label != "c":
            directory.mkdir(parents=True)
            (directory / "rounds.jsonl").write_text("{}\n" * {"a": 10, "b": 7}[label])
    workers = NoProcesses(1, lambda count: 0, {("b", 42)})
    monkeypatch.setattr(sweep_module, "Workers", workers)
    display = Recorder()
    suite = Suite(name="any", results=tmp_path, runs=tuple(runs))
    sweep(suite, runs, jobs=None, display=display)
    assert display.seen == [
        {"runs": 3, "finished": 0},
        (17, 70),
        "a seed 42 finished",
        (17, 70),
        "b seed 42 failed",
        "c seed 42 failed",
        (17, 17),
    ]


def test_plain_lines_count_runs_and_tell_the_time_left(tmp_path, monkeypatch):
    clock = [0.0]
    screen = io.StringIO()
    console = Console(file=screen, width=200, get_time=lambda: clock[0])
    (only,) = one_run_suite(tmp_path).runs
    display = SweepDisplay(console)
    with display.showing(runs=6, finished=2):
        for second in range(6):  # ten rounds a second
            clock[0] = float(second)
            display.rounds(10 * second, 700)
        summary = {"final-accuracy": 0.98765, "wall-seconds": 12.3, "status": "completed"}
        display.finished(only, summary)
        display.finished(only, {**summary, "final-accuracy": 0.1, "status": "diverged"})
        display.failed(only, "no [bold] reason")
    assert screen.getvalue().splitlines() == [
        "2 of 6 runs were finished before",
        "a seed 1: accuracy 0.9877, 12 s (3 of 6 runs, about 0:01:05 left)",
        "a seed 1: accuracy 0.1000 (diverged), 12 s (4 of 6 runs, about 0:01:05 left)",
        "a seed 1: failed: no [bold] reason (5 of 6 runs, about 0:01:05 left)",
    ]


def test_the_table_of_failures_keeps_brackets_and_names_the_log(tmp_path):
    (only,) = one_run_suite(tmp_path).runs
    screen = io.StringIO()
    failure = Failure(run=only, reason="no [bold] reason")
    assert failure.log == ""
    only.directory.mkdir(parents=True)
    (only.directory / "log.txt").write_text("")
    failure_table(Console(file=screen, width=100), [failure])
    row = screen.getvalue().splitlines()[-2]
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "a",
        "1",
        "no [bold] reason",
        "a/seed1/log.txt",
    ]


@pytest.mark.parametrize("wanted", [{"client-cpus": 4}, {"client-gpus": 0.5}])
def test_a_run_that_fits_on_no_machine_is_refused(wanted, monkeypatch, tmp_path):
    import ray

    machines = [
        {"Alive": True, "Resources": {"CPU": 2.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "nodes", lambda: machines)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 66.0})
    with pytest.raises(FedhetError, match="no machine has room for a run that takes that"):
        Workers([parse({}), parse(wanted)], None)
    with Workers([parse({}), parse({"client-cpus": 2})], None) as workers:
        assert workers.jobs == 33


LONG = {
    "name": "long",
    "base": {**BASE, "local-steps": 3, "num-server-rounds": 150, "checkpoint-every": 1},
    "seeds": [1],
    "runs": {
        "long": {"strategy": "fedavg"},
        "short": {"strategy": "fedavg", "num-server-rounds": 2},
    },
}


def started(folder, rows):
    """Start a sweep of one job in a session of its own; return it when some rounds are done."""
    process = subprocess.Popen(
        [FEDHET, "sweep", written(folder, LONG), "--jobs", "1", "--results", "out"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    file = folder / "out" / "long" / "seed1" / "rounds.jsonl"
    give_up = time.monotonic() + 100
    while not file.exists() or file.read_text().count("\n") < rows:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < give_up
        time.sleep(0.01)
    return process, psutil.Process(process.pid).children(recursive=True)


def assert_goes_on(folder):
    file = folder / "suite.yaml"
    command = [FEDHET, "sweep", file, "--results", "out"]
    done = subprocess.run(
        command, cwd=folder, env=environment(), check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    whole = run(folder / "whole", local_steps=3, num_server_rounds=150, seed=1)
    assert outcome(RunReader(folder / "out" / "long" / "seed1")) == outcome(whole)


@pytest.mark.slow
def test_a_worker_that_is_killed_fails_its_run_alone_and_is_continued_later(tmp_path):
    process, children = started(tmp_path, 3)
    (worker,) = [child for child in children if child.name() == "ray::execute"]
    worker.kill()
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 1, output
    assert "long seed 1: failed: its worker process died" in output
    assert RunReader(tmp_path / "out" / "short" / "seed1").summary["status"] == "completed"
    rows = RunReader(tmp_path / "out" / "long" / "seed1").rounds
    assert 3 <= len(rows) < 150
    assert_goes_on(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_term_leave_a_checkpoint_and_no_process(number, tmp_path):
    process, children = started(tmp_path, 3)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "interrupted; continue with: fedhet sweep" in output
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    directory = tmp_path / "out" / "long" / "seed1"
    rows = RunReader(directory).rounds
    _, metadata = load_tensors(directory / checkpoint.FILE)
    assert json.loads(metadata["state"])["round"] == len(rows) < 150
    assert not (tmp_path / "out" / "short").exists()
    assert_goes_on(tmp_path)
