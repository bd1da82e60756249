"""What befalls devices, one fault at a time, on real processes; see ``docs/results/faults.md``.

The runs are SCAFFOLD's, whose server holds the mean of the states that its clients keep on their
disks: any version that is lost, or counts where it should not, shows in that sum.
"""

import json
import os
import time
from datetime import date
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from federation import (
    CLIENT_APP,
    CONNECTION,
    SERVER_APP,
    add_node,
    federation,
    make_credentials,
    wait_until,
)
from hurt import PATIENCE, HurtApp
from running import MIXTURE, TINY, model_bytes, run, tiny

from fedhet_app import checkpoint
from fedhet_app.queries import ANSWERS
from fedhet_app.results import SUMMARY, RunReader
from fedhet_app.sealed import load_sealed
from fedhet_app.task import task_for

pytestmark = pytest.mark.slow

NODES = 3
HURT = 1
TIMEOUT = float(os.environ.get("FAULTS_TIMEOUT", "45"))
"""Seconds of the straggler's round-timeout; a busy machine needs more for honest clients."""
OPTIONS = {
    **TINY,
    "strategy": "scaffold",
    "num-clients": NODES,
    "fraction-train": 1.0,
    "momentum": 0.0,
    "weight-decay": 0.0,
    "checkpoint-every": 1,
    "node-timeout": 300.0,
    "round-timeout": 300.0,
}
HEADER = """# Faults

Measured on a SuperLink and {count} SuperNodes as processes on loopback, by

```console
$ FAULTS_TABLE=docs/results/faults.md .venv/bin/pytest -m slow tests/deploy/test_faults.py
```

{about}

| injected | what the strategy saw | what happened | lost | seconds |
|---|---|---|---|---|
"""
"""What stands above the rows."""


@pytest.fixture(scope="module")
def table():
    """Collect a row per fault; written where the environment says so."""
    rows = []
    yield lambda *cells: rows.append(cells)
    if os.environ.get("FAULTS_TABLE"):
        about = (
            "SCAFFOLD on digits; Flower's heartbeats (30 s), executors that look for work every "
            f"0.05 s; the straggler's round-timeout is {TIMEOUT:g} s. {date.today()}, "
            f"{os.cpu_count()} cores. *Seconds* is the time from the fault until the round that it "
            "hit was over; *lost* is what the run does without in the end. At the end of every "
            "run of SCAFFOLD the server's control variate is the mean of the accepted ones on the "
            "clients' disks."
        )
        lines = ["| " + " | ".join(str(cell) for cell in row) + " |\n" for row in rows]
        head = HEADER.format(count=NODES, about=about)
        Path(os.environ["FAULTS_TABLE"]).write_text(head + "".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return HurtApp(tmp_path_factory.mktemp("hurt"))


def configs(folder, count=NODES):
    return [
        {"partition-id": i, "num-partitions": NODES, "state-dir": str(folder / f"state-{i}")}
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    """Three nodes without keys; a test leaves them all running."""
    folder = tmp_path_factory.mktemp("devices")
    with federation(folder, configs(folder)) as opened:
        yield opened


UNFINISHED = []


@pytest.fixture(autouse=True)
def _end_runs():
    """Stop what a test that failed has left running."""
    yield
    while UNFINISHED:
        devices, run_id = UNFINISHED.pop()
        if devices.superlink.alive and not devices.status(run_id).startswith("finished"):
            devices.call("stop", run_id, CONNECTION)


class Run:
    """A run of the app that can be hurt.

    Args:
        devices: The federation.
        app: The copy.
        directory: Of the results.
        options: By run-config key.
    """

    def __init__(self, devices, app, directory, **options):
        self.devices, self.app, self.directory = devices, app, directory
        app.forget()
        keys = {**OPTIONS, **options, "results-dir": str(directory)}
        self._preset = directory.with_suffix(".toml")
        self._preset.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items()))
        self._hurt_at = 0.0

    def submit(self):
        self.id = self.app.submit(self.devices, self._preset)
        UNFINISHED.append((self.devices, self.id))
        return self

    def until_training(self, number):
        """Wait until the client to hurt trains in a round."""
        self.app.wait_for(f"began-{HURT}-{number}")

    def fault(self):
        """Take the time of the fault."""
        self._hurt_at = time.monotonic()

    def row(self, number):
        """Return the row of a round once it is over, and the seconds since the fault."""
        found = self.devices.wait_for_round(self.directory, number, PATIENCE)
        return found[number - 1], f"{time.monotonic() - self._hurt_at:.0f}"

    def end(self, status="completed"):
        """Wait for the end, and return the results."""
        if status == "completed":  # seldom asking Flower leaves it time to work
            wait_until((self.directory / SUMMARY).exists, PATIENCE, "the run ends")
        ended = self.devices.wait_for_end(self.id, PATIENCE)
        assert ended == f"finished:{status}", self.said()[-5000:]
        return RunReader(self.directory) if status == "completed" else None

    def said(self):
        """Return what the ServerApp has said, as a user reads it."""
        return self.devices.log(self.id)


def replies(reader):
    return [row["replies"] for row in reader.rounds]


def checkpoint_of(directory):
    return load_sealed(directory / checkpoint.FILE)[0]


def assert_states_count(reader, folder):
    """The server's c is the mean of the c_i that lie accepted on the devices' disks."""
    saved = checkpoint_of(reader.directory)
    token = (reader.directory / "clients" / ".run").read_text()
    states = []
    for client, accepted in enumerate(saved["accepted-rounds"]):
        file = folder / f"state-{client}" / token / str(client) / f"round-{accepted}.safetensors"
        states.append(load_sealed(file)[0]["control"].astype(np.float64))
    assert np.abs(saved["control"]).max() > 0
    np.testing.assert_allclose(saved["control"], np.mean(states, axis=0), rtol=0, atol=1e-6)


def reason(row):
    """Return why the reply of the client that is hurt was dropped."""
    (rejected,) = (each for each in row["rejected"] if each["partition"] == HURT)
    return rejected["reason"]


def test_a_client_app_that_raises(devices, app, tmp_path, table):
    run_of = Run(devices, app, tmp_path / "run")
    app.ask(HURT, 2, "raise out of order")
    run_of.submit().until_training(2)
    run_of.fault()
    row, seconds = run_of.row(2)
    assert reason(row).startswith("error 2: ")
    assert "ArithmeticError" in reason(row)
    assert "out of order" in reason(row)
    reader = run_of.end()
    assert replies(reader) == [3, 2, 3]
    assert_states_count(reader, devices.folder)
    table(
        "a ClientApp raises",
        f"`{reason(row)}`",
        "the round is the others'; the client is back in the next",
        "its work of the round",
        seconds,
    )


def test_a_straggler_past_the_round_timeout(devices, app, tmp_path, table):
    """It sleeps through round 2; the message of round 3 expires behind it and is never run."""
    options = {"num-server-rounds": 5, "round-timeout": TIMEOUT}
    run_of = Run(devices, app, tmp_path / "run", **options)
    app.ask(HURT, 2, f"sleep {2 * TIMEOUT + 10:g}")
    run_of.submit().until_training(2)
    row, _ = run_of.row(2)
    third, _ = run_of.row(3)
    reader = run_of.end()
    assert reason(row) == reason(third) == f"no reply within {TIMEOUT:g} s"
    marks = app.marks()
    assert {f"ended-{HURT}-2", f"ended-{HURT}-5"} <= marks
    assert f"began-{HURT}-3" not in marks
    assert HURT not in [each["partition"] for each in reader.rounds[-1]["rejected"]]
    assert_states_count(reader, devices.folder)
    table(
        "a straggler that trains for more than two round-timeouts",
        f"`{reason(row)}`, in two rounds",
        "its late reply and its late state are thrown away; the message that waited behind it "
        "expires and is never run; it is back after that",
        "its work of two rounds",
        "round-timeout",
    )


def test_a_client_app_process_killed(devices, app, tmp_path, table):
    run_of = Run(devices, app, tmp_path / "run")
    app.ask(HURT, 2, "sleep 60")
    run_of.submit().until_training(2)
    (process,) = devices.nodes[HURT].apps(CLIENT_APP)
    process.kill()
    run_of.fault()
    row, seconds = run_of.row(2)
    assert reason(row).startswith("error 8: ")
    reader = run_of.end()
    assert replies(reader) == [3, 2, 3]
    assert_states_count(reader, devices.folder)
    table(
        "a ClientApp process is killed (-9)",
        f"`{reason(row)}`",
        "the round is the others'; the client is back in the next",
        "its work of the round",
        seconds,
    )


def test_a_super_node_terminated_and_started_again(devices, app, tmp_path, table):
    """Without a key it comes back as another node, and as the same client."""
    run_of = Run(devices, app, tmp_path / "run", **{"num-server-rounds": 4})
    app.ask(HURT, 2, "sleep 20")
    run_of.submit().until_training(2)
    devices.nodes[HURT].terminate()
    run_of.fault()
    row, seconds = run_of.row(2)
    devices.nodes[HURT].join()
    assert reason(row).startswith("error 5: ")
    reader = run_of.end()
    assert replies(reader)[0] == replies(reader)[-1] == 3
    assert f"client {HURT} is back, as another node" in run_of.said()
    assert_states_count(reader, devices.folder)
    table(
        "a SuperNode is terminated and started again, without a key",
        f"`{reason(row)}`",
        "the new node has the partition of the one that left: it takes its place and goes on with "
        "the state in its state-dir",
        "its work until it is back",
        seconds,
    )


def test_a_super_node_killed_and_started_again(devices, app, tmp_path, table):
    """Flower lists the dead node for a minute: until then its successor waits."""
    run_of = Run(devices, app, tmp_path / "run", **{"num-server-rounds": 4})
    app.ask(HURT, 2, "sleep 20")
    run_of.submit().until_training(2)
    devices.nodes[HURT].kill()
    run_of.fault()
    devices.nodes[HURT].join()
    row, seconds = run_of.row(2)
    assert reason(row).startswith("error 5: ")
    assert f"ended-{HURT}-2" not in app.marks()
    reader = run_of.end()
    assert replies(reader)[0] == replies(reader)[-1] == 3
    assert f"client {HURT} is back, as another node" in run_of.said()
    assert_states_count(reader, devices.folder)
    table(
        "a SuperNode is killed (-9) in training and started again, without a key",
        f"`{reason(row)}`",
        "as when it is terminated, once Flower lists the dead node no more",
        "its work until it is back",
        seconds,
    )


def test_the_server_app_killed_and_the_run_resumed(devices, app, tmp_path, table):
    """Killed with a full disk under its last checkpoint: the run goes back to the one before."""
    run_of = Run(devices, app, tmp_path / "run", **{"num-server-rounds": 4})
    run_of.submit()
    run_of.row(1)
    full = (run_of.directory / checkpoint.FILE).with_name("state.safetensors.partial")
    full.symlink_to("/dev/full")
    run_of.row(2)
    wait_until(lambda: "no checkpoint of round 2" in run_of.said(), PATIENCE, "the warning")
    (server,) = devices.superlink.apps(SERVER_APP)
    before = checkpoint_of(run_of.directory)["accepted-rounds"].tolist()
    server.kill()
    run_of.fault()
    assert before == [1, 1, 1]
    resumed = Run(devices, app, run_of.directory, **{"num-server-rounds": 4, "resume": True})
    reader = resumed.submit().end()
    seconds = f"{time.monotonic() - run_of._hurt_at:.0f}"
    assert replies(reader) == [3, 3, 3, 3]
    assert_states_count(reader, devices.folder)
    keys = {key.replace("-", "_"): value for key, value in OPTIONS.items()}
    unbroken = run(tmp_path / "unbroken", **{**keys, "num_server_rounds": 4})
    assert model_bytes(reader) == model_bytes(unbroken)
    table(
        "the disk is full while a checkpoint is written",
        "`no checkpoint of round 2, that of round 1 stays: ... No space left on device`",
        "a warning; the old checkpoint stays good, the run goes on",
        "nothing",
        "0",
    )
    table(
        "the ServerApp is killed (-9) after that, and the run resumed with `resume=true`",
        "-",
        "goes on from round 1; the final model has the bits of an unbroken run",
        "nothing (round 2 is done again)",
        f"{seconds} to the end of the run",
    )


def test_the_superlink_killed_and_started_again(devices, app, tmp_path, table):
    """With all that it has started, as when its machine goes down."""
    run_of = Run(devices, app, tmp_path / "run", **{"num-server-rounds": 4})
    app.ask(HURT, 2, "sleep 20")
    run_of.submit().until_training(2)
    devices.superlink.end()
    run_of.fault()
    devices.superlink.start()
    devices.wait_for_superlink()
    run_of.end("failed")
    resumed = Run(devices, app, run_of.directory, **{"num-server-rounds": 4, "resume": True})
    reader = resumed.submit().end()
    seconds = f"{time.monotonic() - run_of._hurt_at:.0f}"
    assert replies(reader) == [3, 3, 3, 3]
    assert_states_count(reader, devices.folder)
    table(
        "the SuperLink and its ServerApp are killed (-9) and started again on their database",
        "-",
        "the devices find it again; the run has failed, and goes on with `resume=true`",
        "nothing (the round is done again)",
        f"{seconds} to the end of the run",
    )


def test_a_run_submitted_when_a_node_was_just_killed(devices, app, tmp_path, table):
    """Flower still lists the dead node: the run starts with the one that has its partition."""
    devices.nodes[HURT].kill()
    devices.nodes[HURT].join()
    run_of = Run(devices, app, tmp_path / "run", **{"num-server-rounds": 1})
    run_of.fault()
    reader = run_of.submit().end()
    _, seconds = run_of.row(1)
    assert replies(reader) == [3]
    assert "a node has not said who it is: Error: Node Unavailable" in run_of.said()
    table(
        "a run is submitted when a node was just killed (-9) and started again, without a key",
        "error 5 to the question for its profile",
        "the dead node is left out, the run starts with the new one",
        "nothing",
        seconds,
    )


def routed(devices, app, directory, images, **options):
    """Let the clients answer images after a run, and return the answers and the log."""
    query = Run(devices, app, directory, **options, **{"queries": str(images), "resume": True})
    query.submit()
    wait_until((directory / ANSWERS).exists, PATIENCE, "the answers")
    query.end()
    lines = (directory / ANSWERS).read_text().splitlines()
    (directory / ANSWERS).unlink()
    return [json.loads(line) for line in lines], query.said()


def test_a_routed_query_whose_client_is_away(devices, app, tmp_path, table):
    keys = {**MIXTURE, "num_clients": NODES, "num_server_rounds": 1}
    options = {key.replace("__", ".").replace("_", "-"): value for key, value in keys.items()}
    options["batch-size"] = 16
    reader = Run(devices, app, tmp_path / "run", **options).submit().end()
    dataset = task_for(tiny(tmp_path / "none", **keys)).dataset
    PIL.Image.fromarray(np.array(dataset.test.inputs[0])).save(tmp_path / "image.png")
    (first,), _ = routed(devices, app, reader.directory, tmp_path / "image.png", **options)
    assert first["answered_by"] == first["client"]
    devices.nodes[first["client"]].terminate()
    options["node-timeout"] = 60.0
    (again,), said = routed(devices, app, reader.directory, tmp_path / "image.png", **options)
    devices.nodes[first["client"]].join()
    assert again["client"] == first["client"]
    assert again["answered_by"] in set(range(NODES)) - {first["client"]}
    told = f"client {again['answered_by']} (client {first['client']} is away): class"
    assert told in said
    table(
        "the client that a query is routed to is away",
        "2 of 3 profiles in node-timeout",
        f"the next best answers: `image.png: {told} {again['label']}`",
        "nothing; a less fit answer",
        "node-timeout",
    )


def test_nodes_that_are_too_few_come_late_or_have_one_partition(app, tmp_path, table):
    """Two of three nodes, then the third, then one too many."""
    folder = tmp_path / "devices"
    with federation(folder, configs(folder), start=False) as devices:
        for node in devices.nodes[:2]:
            node.join()
        few = Run(devices, app, tmp_path / "few", **{"node-timeout": 20.0})
        few.fault()
        few.submit().end("failed")
        seconds = f"{time.monotonic() - few._hurt_at:.0f}"
        told = "node-timeout = 20.0: 2 of 3 nodes came in that many seconds; start more, or allow"
        assert told in few.said()
        assert not few.directory.exists()
        table("fewer nodes than needed", "-", f"the run ends: `{told} more`", "-", seconds)

        late = Run(devices, app, tmp_path / "late", **{"num-server-rounds": 1}).submit()
        time.sleep(10)
        devices.nodes[2].join()
        assert replies(late.end()) == [3]
        table("a node joins 10 s late", "-", "the run waits and starts with it", "nothing", "-")

        twin = add_node(devices, "twin", configs(folder)[HURT])
        twin.join()
        two = Run(devices, app, tmp_path / "two")
        two.fault()
        two.submit().end("failed")
        seconds = f"{time.monotonic() - two._hurt_at:.0f}"
        told = f"partition-id = {HURT}: two nodes have this partition; give every node its own"
        assert told in two.said()
        assert not two.directory.exists()
        table("two nodes have one partition", "-", f"the run ends: `{told}`", "-", seconds)


def test_a_key_rotated_in_the_middle_of_a_run(app, tmp_path, table):
    folder = tmp_path / "devices"
    with federation(folder, configs(folder), secure=True) as devices:
        run_of = Run(devices, app, tmp_path / "run", **{"num-server-rounds": 4})
        app.ask(HURT, 2, "sleep 20")
        run_of.submit().until_training(2)
        old = devices.nodes[HURT]
        old.terminate()
        run_of.fault()
        devices.call("supernode", "unregister", old.node_id, CONNECTION)
        make_credentials(folder / "credentials", [], ["rotated"])
        devices.register(folder / "credentials" / "rotated.pub")
        key = folder / "credentials" / "rotated"
        add_node(devices, "rotated", configs(folder)[HURT], key).join()
        row, seconds = run_of.row(2)
        reader = run_of.end()
        assert replies(reader)[0] == replies(reader)[-1] == 3
        assert f"client {HURT} is back, as another node" in run_of.said()
        assert_states_count(reader, folder)
        table(
            "a SuperNode's key is unregistered, and it is started again with a new one",
            f"`{reason(row)}`",
            "another node to Flower; its partition says which client it is, and it goes on with "
            "the state in its state-dir",
            "its work until it is back",
            seconds,
        )


def test_a_node_with_a_key_killed_and_a_second_with_the_same_key(app, tmp_path, table):
    folder = tmp_path / "devices"
    with federation(folder, configs(folder), secure=True) as devices:
        before = sorted(devices.online())
        run_of = Run(devices, app, tmp_path / "run", **{"num-server-rounds": 5})
        app.ask(HURT, 2, "sleep 20")
        app.ask(HURT, 4, "sleep 60")
        run_of.submit().until_training(1)

        key = folder / "credentials" / f"node-{HURT}"
        twin = add_node(devices, "twin", configs(folder)[HURT], key)
        twin.start()
        wait_until(lambda: not twin.alive, PATIENCE, "the second node with the key ends")
        assert "[code: 2004] Failed to activate SuperNode" in twin.said()
        table(
            "a second SuperNode with the key of one that runs",
            "-",
            "it ends at once: `[code: 2004] Failed to activate SuperNode`",
            "nothing",
            "-",
        )

        run_of.until_training(2)
        devices.nodes[HURT].kill()
        run_of.fault()
        devices.nodes[HURT].join(PATIENCE)
        row, seconds = run_of.row(2)

        run_of.until_training(4)
        (server,) = devices.superlink.apps(SERVER_APP)
        server.suspend()  # it looks every second, and is not to see the node away
        devices.nodes[HURT].terminate()
        run_of.fault()
        devices.nodes[HURT].join(PATIENCE)
        server.resume()
        fourth, unseen = run_of.row(4)
        assert reason(fourth) == "error 5: the node was started again before it had replied"

        reader = run_of.end()
        assert sorted(devices.online()) == before
        assert replies(reader)[0] == replies(reader)[-1] == 3
        assert "as another node" not in run_of.said()
        assert_states_count(reader, folder)
        table(
            "a SuperNode is terminated and started again, with its key, before anyone has noticed",
            f"`{reason(fourth)}`",
            "a question that the node answers before its message says that the message is lost",
            "its work of the round",
            unseen,
        )
        table(
            "a SuperNode is killed (-9) in training and started again, with its key",
            f"`{reason(row)}`",
            "the SuperLink refuses it until it has missed two heartbeats; then it is the same node "
            "and goes on with the state in its state-dir",
            "its work until it is back",
            seconds,
        )
