"""SCAFFOLD as a whole: against plain PyTorch, and its clients' states through faults and stops."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from running import interrupted, model_bytes, outcome, run, run_spoilt, tiny
from test_reductions import FULL_BATCH, assert_close, digits_for_training, start_of
from torch.nn.functional import cross_entropy

from fedhet_app import checkpoint, engine
from fedhet_app.engine.execute import execute
from fedhet_app.errors import FedhetError
from fedhet_app.results import SUMMARY, RunReader, load_tensors
from fedhet_app.suite_results import has_ended
from fedhet_app.task import Task
from strategies.client_states import ClientStates

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {"strategy": "scaffold", "momentum": 0.0, "weight_decay": 0.0}
PARTIAL = {**PLAIN, "num_server_rounds": 7, "fraction_train": 0.5, "checkpoint_every": 3}
BAD = 1


def corrected_sgd(module, images, labels, correction, *, lr, momentum):
    """Three full-batch steps along clip(g) + correction."""
    velocity = [torch.zeros_like(parameter) for parameter in module.parameters()]
    for _ in range(3):
        module.zero_grad()
        cross_entropy(module(images), labels).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.3)
        with torch.no_grad():
            for p, v, added in zip(module.parameters(), velocity, correction, strict=True):
                v.mul_(momentum).add_(p.grad + added)
                p.sub_(lr * v)


def plain_scaffold(config, cohorts, *, server_lr=1.0, by_examples=False, momentum=0.0):
    """Algorithm 1 with tensors per parameter; ``cohorts`` are the clients of each round."""
    partition, module = Task(config).partition, start_of(config)
    images, labels = digits_for_training()
    x = [parameter.detach().clone() for parameter in module.parameters()]
    server = [torch.zeros_like(each) for each in x]
    own = {client: [torch.zeros_like(each) for each in x] for client in range(3)}
    # Three steps with momentum .5 go as far as 1 + 1.5 + 1.75 without.
    steps = {0.0: 3.0, 0.5: 4.25}[momentum]
    for server_round, cohort in enumerate(cohorts, start=1):
        lr = 0.05 * 0.8 ** (server_round - 1)
        sizes = {client: len(partition.client(client)) for client in cohort}
        total = sum(sizes.values())
        weights = {c: sizes[c] / total if by_examples else 1 / len(cohort) for c in cohort}
        moved, changed = ([torch.zeros_like(each) for each in x] for _ in range(2))
        for client in cohort:
            rows = torch.tensor(partition.client(client))
            with torch.no_grad():
                for p, value in zip(module.parameters(), x, strict=True):
                    p.copy_(value)
            correction = [c - ci for c, ci in zip(server, own[client], strict=True)]
            corrected_sgd(module, images[rows], labels[rows], correction, lr=lr, momentum=momentum)
            for j, (p, value) in enumerate(zip(module.parameters(), x, strict=True)):
                step = p.detach() - value
                renewed = own[client][j] - server[j] - step / (steps * lr)
                moved[j] += weights[client] * step
                changed[j] += (renewed - own[client][j]) / 3
                own[client][j] = renewed
        x = [value + server_lr * step for value, step in zip(x, moved, strict=True)]
        server = [c + change for c, change in zip(server, changed, strict=True)]
    with torch.no_grad():
        for p, value in zip(module.parameters(), x, strict=True):
            p.copy_(value)
    return module


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({}, {}),
        ({"scaffold__server_lr": 0.5}, {"server_lr": 0.5}),
        ({"scaffold__weighting": "examples"}, {"by_examples": True}),
        ({"momentum": 0.5, "scaffold__momentum_correction": True}, {"momentum": 0.5}),
    ],
    ids=["published", "server-lr", "by examples", "momentum corrected"],
)
def test_a_whole_run_is_the_algorithm_in_plain_torch(options, how, tmp_path):
    options = {
        **FULL_BATCH,
        **PLAIN,
        "num_clients": 3,
        "num_server_rounds": 4,
        "fraction_train": 0.6,
        **options,
    }
    reader = run(tmp_path / "run", **options)
    trained = [(row["round"], row["partition"]) for row in reader.clients]
    cohorts = [[p for r, p in trained if r == server_round] for server_round in (1, 2, 3, 4)]
    assert [len(cohort) for cohort in cohorts] == [2, 2, 2, 2]
    assert len({tuple(cohort) for cohort in cohorts}) > 1
    assert_close(reader, plain_scaffold(tiny(tmp_path, **options), cohorts, **how))


def test_the_control_variates_change_the_run(tmp_path):
    """The second round is the first to differ from FedAvg's: all sizes are equal."""
    options = {**PLAIN, "partition": "iid", "fraction_train": 1.0, "num_server_rounds": 2}
    scaffold = run(tmp_path / "scaffold", **options)
    fedavg = run(tmp_path / "fedavg", **{**options, "strategy": "fedavg"})
    assert model_bytes(scaffold) != model_bytes(fedavg)


def test_with_one_step_and_everybody_there_it_is_fedavg_in_every_round(tmp_path):
    options = {**PLAIN, "partition": "iid", "fraction_train": 1.0, "local_steps": 1}
    scaffold = run(tmp_path / "scaffold", **options, num_server_rounds=4)
    fedavg = run(tmp_path / "fedavg", **{**options, "strategy": "fedavg"}, num_server_rounds=4)
    for name, array in fedavg.model().items():
        np.testing.assert_allclose(scaffold.model()[name], array, atol=1e-6, rtol=0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole") / "run", **PARTIAL)


def server_state(directory):
    return load_tensors(directory / checkpoint.FILE)[0]


def controls(directory, folder=None):
    """The control variate of each client that ever counted, by the rounds of the checkpoint."""
    accepted = server_state(directory)["accepted-rounds"].tolist()
    folder = folder or directory / "clients"
    files = {i: folder / str(i) / f"round-{r}.safetensors" for i, r in enumerate(accepted) if r}
    return {i: load_tensors(file)[0]["control"] for i, file in files.items()}


def assert_server_has_the_mean(directory, num_clients=6):
    control = server_state(directory)["control"]
    assert np.abs(control).max() > 1e-3
    mean = sum(each.astype(np.float64) for each in controls(directory).values()) / num_clients
    np.testing.assert_allclose(control, mean, atol=1e-6 * np.abs(control).max(), rtol=0)


def test_the_server_has_the_mean_of_the_clients_whoever_trained(whole):
    assert_server_has_the_mean(whole.directory)


def settings_of(message):
    return message.content.config_records["config"]


def without_reply(message, answer):
    answer()  # the client has trained, and waits for what becomes of it


def with_control(change):
    def spoil(message, answer):
        content = answer().content
        control = change(content.array_records["control"]["vector"].numpy().copy())
        record = ArrayRecord({"vector": Array(control)})
        return Message(RecordDict({**content, "control": record}), reply_to=message)

    return spoil


def one_nan(control):
    control[3] = np.nan
    return control


FAULTS = {
    "lost on the way": (without_reply, "no reply within"),
    "too short": (with_control(lambda c: c[:-1]), "control of shape"),
    "as large as the model": (with_control(lambda c: np.resize(c, len(c) + 8)), "control of shape"),
    "NaN": (with_control(one_nan), "non-finite values in control"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reply_that_cannot_be_used_leaves_client_and_server_consistent(fault, tmp_path):
    change, reason = FAULTS[fault]

    def absent(partition, message, answer):
        bad = partition == BAD and settings_of(message)["round"] in (1, 3, 4)
        return None if bad else answer()

    def spoil(partition, message, answer):
        bad = partition == BAD and settings_of(message)["round"] in (1, 3, 4)
        return change(message, answer) if bad else answer()

    options = {**PARTIAL, "fraction_train": 1.0, "num_server_rounds": 6}
    without_it = run_spoilt(tmp_path / "absent", absent, **options)
    reader = run_spoilt(tmp_path / "run", spoil, **options)
    assert model_bytes(reader) == model_bytes(without_it)
    rejected = [(row["round"], each) for row in reader.rounds for each in row["rejected"]]
    assert [(r, each["partition"]) for r, each in rejected] == [(1, BAD), (3, BAD), (4, BAD)]
    assert all(reason in each["reason"] for _, each in rejected)
    assert_server_has_the_mean(tmp_path / "run")


def test_a_round_with_too_few_replies_changes_no_state(tmp_path):
    def spoil(partition, message, answer):
        return None if partition == BAD and settings_of(message)["round"] == 3 else answer()

    options = {**PARTIAL, "fraction_train": 1.0, "min_replies": 6, "num_server_rounds": 4}
    run_spoilt(tmp_path / "run", spoil, **options)
    assert server_state(tmp_path / "run")["accepted-rounds"].tolist() == [4] * 6
    assert_server_has_the_mean(tmp_path / "run")


@pytest.mark.parametrize("at", [1, 4, 6])
def test_a_stopped_run_resumes_bit_for_bit(at, whole, tmp_path):
    interrupted(tmp_path / "run", at, **PARTIAL)
    assert outcome(run(tmp_path / "run", resume=True, **PARTIAL)) == outcome(whole)


KILLED = """
import json, os, signal, sys
from fedhet_app import engine
from fedhet_app.config import parse
from fedhet_app.results import round_observer

def kill(row):
    if row["round"] == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    round_observer.set(kill)
    engine.run(parse(json.loads(sys.argv[1])), engine=sys.argv[3])
"""


def killed(directory, at, engine_name, **options):
    """Run in a process of its own that dies by SIGKILL as it writes the row of round ``at``."""
    config = json.dumps(tiny(directory, **options).flat())
    done = subprocess.run(
        [sys.executable, "-c", KILLED, config, str(at), engine_name],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert len(RunReader(directory).rounds) == at


def test_a_run_killed_between_checkpoints_resumes_bit_for_bit(whole, tmp_path):
    """Killed in round 5 of 7 with the checkpoint of round 3, stopped in 7 with that of 6."""
    killed(tmp_path / "run", 5, "inline", **PARTIAL)
    interrupted(tmp_path / "run", 7, resume=True, **PARTIAL)
    assert outcome(run(tmp_path / "run", resume=True, **PARTIAL)) == outcome(whole)
    assert_server_has_the_mean(tmp_path / "run")


@pytest.mark.slow
def test_a_run_killed_on_ray_resumes_bit_for_bit_on_either_engine(whole, tmp_path):
    killed(tmp_path / "run", 5, "ray", **PARTIAL)
    shutil.copytree(tmp_path / "run", tmp_path / "moved")
    killed(tmp_path / "run", 7, "ray", resume=True, **PARTIAL)
    engine.run(tiny(tmp_path / "run", resume=True, **PARTIAL), engine="ray")
    assert outcome(RunReader(tmp_path / "run")) == outcome(whole)
    assert outcome(run(tmp_path / "moved", resume=True, **PARTIAL)) == outcome(whole)


def test_a_run_cannot_be_resumed_without_its_clients_states(tmp_path):
    interrupted(tmp_path / "run", 4, **PARTIAL)
    shutil.rmtree(tmp_path / "run" / "clients")
    with pytest.raises(FedhetError, match="the clients' states are gone; start the run again"):
        run(tmp_path / "run", resume=True, **PARTIAL)


def nodes_with(folder):
    return [{**node, "state-dir": str(folder)} for node in engine.virtual_nodes(6)]


def test_nodes_with_a_folder_of_their_own_keep_their_states_there(whole, tmp_path):
    options = {**PARTIAL, "nodes": nodes_with(tmp_path / "device")}
    one = run(tmp_path / "one", **options)
    two = run(tmp_path / "two", **options)
    assert outcome(one) == outcome(two) == outcome(whole)
    assert not list((tmp_path / "one" / "clients").rglob("*.safetensors"))
    tokens = {(tmp_path / name / "clients" / ".run").read_text() for name in ("one", "two")}
    assert {path.name for path in (tmp_path / "device").iterdir()} == tokens
    for name in ("one", "two"):
        token = (tmp_path / name / "clients" / ".run").read_text()
        assert controls(tmp_path / name, tmp_path / "device" / token).keys()


def test_a_node_with_a_bad_folder_says_so_before_the_first_round(tmp_path):
    nodes = nodes_with("relative")
    with pytest.raises(FedhetError, match="the node config's state-dir is an absolute path"):
        run(tmp_path / "run", nodes=nodes, **PARTIAL)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def remote_server(monkeypatch):
    """A server whose folders its clients do not see."""
    real = ClientStates.note

    def elsewhere(self, partition, saved):
        note = real(self, partition, saved)
        return type(note)(**{**vars(note), "directory": "/not/here"})

    monkeypatch.setattr(ClientStates, "note", elsewhere)


@pytest.mark.usefixtures("remote_server")
def test_elsewhere_the_state_lies_with_the_node_and_dies_with_it(whole, tmp_path, caplog):
    far = run(tmp_path / "far", **PARTIAL)
    assert outcome(far) == outcome(whole)
    assert not list((tmp_path / "far" / "clients").rglob("*.safetensors"))
    options = {**PARTIAL, "max_empty_rounds": 1, "min_replies": 3}
    interrupted(tmp_path / "stopped", 5, **options)
    with pytest.raises(FedhetError, match="max-empty-rounds = 1: that many rounds"):
        run(tmp_path / "stopped", resume=True, **options)
    assert "for want of a state-dir in the node config': the client no longer has it" in caplog.text
    assert RunReader(tmp_path / "stopped").summary["status"] == "failed"


def test_old_states_in_the_folder_of_a_new_run_do_not_matter(whole, tmp_path):
    shutil.copytree(whole.directory / "clients", tmp_path / "new" / "clients")
    assert outcome(run(tmp_path / "new", **PARTIAL)) == outcome(whole)


def test_only_what_may_be_needed_is_kept(whole):
    folders = [path for path in (whole.directory / "clients").iterdir() if path.is_dir()]
    assert len(folders) == 6
    assert max(len(list(folder.iterdir())) for folder in folders) <= 3


DIVERGING = {
    **PARTIAL,
    "momentum": 0.9,
    "scaffold__allow_momentum": True,
    "local_steps": 20,
    "norm": "none",
    "clip_norm": 0.0,
    "num_server_rounds": 40,
    "evaluate_every": 1,
    "max_empty_rounds": 2,
}


def test_a_run_that_diverges_ends_and_says_so(tmp_path):
    with pytest.raises(FedhetError, match=r"max-empty-rounds = 2.*training diverged"):
        run(tmp_path / "run", **DIVERGING)
    reader = RunReader(tmp_path / "run")
    summary = reader.summary
    assert summary["status"] == "diverged"
    assert summary["rounds"] == len(reader.rounds) < 40
    assert [row["replies"] for row in reader.rounds[-2:]] == [0, 0]
    assert (tmp_path / "run" / checkpoint.FILE).exists()


def test_a_sweep_takes_the_divergence_that_was_asked_for_as_an_end(tmp_path):
    wanted = tiny(tmp_path / "wanted", **DIVERGING)
    assert not has_ended(wanted)
    assert execute(wanted) == ""
    assert has_ended(wanted)
    other = {"strategy": "fedavg", "scaffold__allow_momentum": False, "lr": 1e30}
    unwanted = tiny(tmp_path / "unwanted", **{**DIVERGING, **other})
    assert "training diverged" in execute(unwanted)
    assert not has_ended(unwanted)


def test_a_run_that_is_going_on_again_has_no_summary(tmp_path):
    run(tmp_path / "run", **PARTIAL)
    longer = {**PARTIAL, "num_server_rounds": 9, "resume": True}
    interrupted(tmp_path / "run", 8, **longer)
    assert not (tmp_path / "run" / SUMMARY).exists()
