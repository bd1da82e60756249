"""The federations of docker/, with TLS and keys and without, as processes on loopback."""

import json
import shutil

import numpy as np
import PIL.Image
import pytest
from composed import DOCKER, Loopback, compose
from federation import CONNECTION, Node, Service, make_credentials, open_federation
from running import MIXTURE, TINY

from fedhet_app.config import parse
from fedhet_app.queries import ANSWERS
from fedhet_app.task import task_for

pytestmark = pytest.mark.slow

PATIENCE = 900  # on a busy machine an exchange has taken four minutes; alone, ten seconds
VICTIM = 1
COMMON = {**TINY, "num-clients": 3, "fraction-train": 1.0, "node-timeout": 600.0}
HAS_FL = {
    **COMMON,
    "strategy": "has-fl",
    "num-server-rounds": 5,
    "has-fl.warmup": 1,
    "has-fl.adapt-every": 1,
}
FEDSPM = {
    **COMMON,
    **{key.replace("__", ".").replace("_", "-"): value for key, value in MIXTURE.items()},
    "num-clients": 3,
    "num-server-rounds": 2,
}


def start_all(opened, services, loopback):
    """Start every service of the files, executors first: nothing waits for anything."""
    for name, service in services.items():
        kind = Node if "--isolation=process" in service.command and "node" in name else Service
        opened.add(name, loopback.command(name), kind, service.environment)
    for name in services:
        if name.startswith("superexec"):
            opened.services[name].start()
    opened.services["superlink"].start()
    opened.wait_for_superlink()


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """The services of compose.yml with compose.tls.yml, all nodes admitted and online."""
    folder = tmp_path_factory.mktemp("deployed")
    nodes = [f"supernode-{i}" for i in (1, 2, 3)]
    keys = make_credentials(folder / "keys", ["superlink", "localhost", "127.0.0.1"], nodes)
    services = compose(DOCKER / "compose.yml", DOCKER / "compose.tls.yml")
    loopback = Loopback(services, folder / "volumes", {DOCKER / "credentials": keys})
    address = loopback.addresses["superlink:8000"]
    with open_federation(folder / "services", address, keys / "ca.crt", {}) as opened:
        opened.volumes = folder / "volumes"
        start_all(opened, services, loopback)
        opened.ids = [opened.register(keys / f"{name}.pub") for name in nodes]
        opened.nodes = [opened.services[name] for name in nodes]
        opened.executors = [opened.services[f"superexec-clientapp-{i}"] for i in (1, 2, 3)]
        for node in opened.nodes:
            node.join()
        yield opened


def run_of(deployed, name, options):
    directory = deployed.volumes / "results" / name
    return directory, deployed.submit({**options, "results-dir": str(directory)})


def test_has_fl_completes_though_a_node_is_killed(deployed):
    directory, run = run_of(deployed, "has-fl", HAS_FL)
    deployed.wait_for_round(directory, 1, PATIENCE)
    deployed.executors[VICTIM].wait_for_app(patience=PATIENCE)
    deployed.nodes[VICTIM].kill()
    deployed.nodes[VICTIM].join()
    assert sorted(deployed.online()) == sorted(deployed.ids)  # it is the same node
    assert deployed.wait_for_end(run, PATIENCE) == "finished:completed"
    rows = deployed.wait_for_round(directory, 5)
    lost = [(row["round"], each) for row in rows for each in row["rejected"]]
    assert {each["partition"] for _, each in lost} == {VICTIM}
    reason = lost[0][1]["reason"]  # Flower's while the node is away, the grid's once it is back
    again = "error 5: the node was started again before it had replied"
    assert "Node Unavailable" in reason or reason == again
    assert rows[0]["replies"] == rows[-1]["replies"] == 3
    capacities = json.loads((directory / "partition.json").read_text())["capacities"]
    assert capacities == [0.25, 0.5, 1.0]


@pytest.fixture(scope="module")
def mixture(deployed):
    """The directory of a run of FedSPM in which a node restarts."""
    directory, run = run_of(deployed, "fedspm", FEDSPM)
    deployed.wait_for_round(directory, 1, PATIENCE)
    deployed.nodes[VICTIM].terminate()  # what Flower's context held of it is gone
    deployed.nodes[VICTIM].join()
    assert deployed.wait_for_end(run, PATIENCE) == "finished:completed"
    return directory


def test_fedspm_goes_on_with_the_state_of_a_node_that_restarts(deployed, mixture):
    row = deployed.wait_for_round(mixture, 2)[-1]
    assert row["client-accuracy"].keys() == {"0", "1", "2"}  # with the heads that it keeps
    for i in range(3):
        files = (deployed.volumes / f"client-state-{i + 1}").glob(f"*/{i}/round-*.safetensors")
        assert list(files)
    assert not (mixture / "clients" / "0").exists()


def ask(deployed, directory, images, patience):
    """Let the nodes that come within ``patience`` answer; return answers by image, and the log."""
    (directory / ANSWERS).unlink(missing_ok=True)
    asked = {"resume": True, "queries": str(images), "node-timeout": patience}
    run = deployed.submit({**FEDSPM, "results-dir": str(directory), **asked})
    assert deployed.wait_for_end(run, PATIENCE) == "finished:completed"
    answers = map(json.loads, (directory / ANSWERS).read_text().splitlines())
    said = deployed.flwr("log", run, CONNECTION, "--show")
    return {each["image"]: each for each in answers}, said


def test_a_query_goes_to_its_client_and_to_the_next_best_when_that_is_away(deployed, mixture):
    images = deployed.folder / "images"
    images.mkdir()
    dataset = task_for(parse({**FEDSPM, "results-dir": str(mixture)})).dataset
    for client in range(3):
        row = int(np.flatnonzero(dataset.test_groups == client)[0])
        PIL.Image.fromarray(np.array(dataset.test.inputs[row])).save(images / f"{client}.png")
    before, _ = ask(deployed, mixture, images, 600.0)
    assert len(before) == 3
    assert all(each["answered_by"] == each["client"] for each in before.values())
    away = before[str(images / "0.png")]["client"]
    deployed.nodes[away].terminate()
    after, said = ask(deployed, mixture, images, 60.0)
    for image, each in after.items():
        assert each["client"] == before[image]["client"]
        if each["client"] == away:
            assert each["answered_by"] not in (away, -1)
            assert 0 <= each["label"] < 10
            assert f"{image}: client {each['answered_by']} (client {away} is away)" in said
        else:
            assert each == before[image]
    deployed.nodes[away].join()


def test_the_files_without_encryption_are_a_federation_too_whose_superlink_may_restart(tmp_path):
    services = compose(DOCKER / "compose.yml")
    loopback = Loopback(services, tmp_path / "volumes", {})
    address = loopback.addresses["superlink:8000"]
    with open_federation(tmp_path / "services", address, environment={}) as opened:
        start_all(opened, services, loopback)
        for i in (1, 2, 3):
            opened.services[f"supernode-{i}"].join()
        directory = tmp_path / "volumes" / "results" / "plain"
        options = {**COMMON, "strategy": "heterofl", "num-server-rounds": 2}
        run = opened.submit({**options, "results-dir": str(directory)})
        opened.wait_for_round(directory, 1, PATIENCE)
        opened.services["superlink"].kill()
        opened.services["superlink"].start()
        opened.wait_for_superlink()
        assert opened.wait_for_end(run, PATIENCE) == "finished:completed", opened.log(run)
        rows = opened.wait_for_round(directory, 2)
        assert [(row["replies"], row["rejected"]) for row in rows] == [(3, []), (3, [])]


ONE_DEVICE = {
    "SUPERLINK": "fleet-gate:8443",
    "PARTITION_ID": "0",
    "NUM_PARTITIONS": "1",
}


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_a_device_behind_the_gate_trains_and_cannot_command(tmp_path):
    keys = make_credentials(tmp_path / "keys", ["superlink", "127.0.0.1"], ["mine"])
    services = compose(DOCKER / "server" / "compose.yml")
    services |= compose(DOCKER / "device" / "compose.yml", **ONE_DEVICE)
    places = {DOCKER / "credentials": keys, DOCKER / "device" / "credentials": keys / "mine"}
    loopback = Loopback(services, tmp_path / "volumes", places)
    address = loopback.addresses["superlink:8000"]
    with open_federation(tmp_path / "services", address, keys / "ca.crt", {}) as opened:
        start_all(opened, services, loopback)
        opened.services["fleet-gate"].start()
        opened.register(keys / "mine.pub")
        opened.services["supernode"].join()
        options = {**TINY, "num-clients": 1, "num-server-rounds": 1}
        directory = tmp_path / "volumes" / "results" / "one"
        run = opened.submit({**options, "results-dir": str(directory)})
        assert opened.wait_for_end(run, PATIENCE) == "finished:completed"
        gate = loopback.addresses["fleet-gate:8443"]
        (tmp_path / "stranger").mkdir()
        with open_federation(tmp_path / "stranger", gate, keys / "ca.crt", {}) as stranger:
            for arguments in (["list", CONNECTION], ["supernode", "register", keys / "mine.pub"]):
                with pytest.raises(AssertionError, match="403"):
                    stranger.call(*arguments)
