"""The states of every method that keeps one, on nodes with folders of their own."""

import pytest
from flwr.app import Context, RecordDict
from running import MIXTURE, SpoiltGrid, outcome, tiny

from fedhet_app.results import RunReader
from fedhet_app.server_app import app as server_app

HURT = 1
METHODS = {
    "ditto": {"norm": "bn"},
    "feddrm": {},
    "fedem": {"fedem__components": 2},
    "fedgmm": {"fedgmm__gaussians": 2, "fedgmm__components": 2, "fedgmm__dimensions": 4},
    "fedspm": {},
    "fedspm-cx": {"strategy": "fedspm", "fedspm__encoders": "per-component"},
    "scaffold": {"momentum": 0.0, "weight_decay": 0.0, "lr_schedule": "exponential"},
}
TWO_EXCHANGES = ("feddrm", "fedspm", "fedspm-cx")
FAST = ("fedspm", "scaffold")
EVERY_METHOD = pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in METHODS],
)


def options_of(method):
    return {**MIXTURE, "strategy": method, **METHODS[method]}


def message_round(message):
    return message.content.config_records["config"].get("round")


class Devices:
    """Nodes whose states lie in folders of their own, each as its process sees them.

    Args:
        folder: Where the nodes' folders are.
        restarts: Whether every message meets a node that has just been started.
        node_config: What else the nodes are told.
    """

    def __init__(self, folder, *, restarts=False, **node_config):
        self.folder, self._restarts, self._more = folder, restarts, node_config

    def run(self, directory, spoil=None, **options):
        """Run a small config; ``spoil`` as for a ``SpoiltGrid``."""
        config = tiny(directory, **options)

        def meet(partition, message, answer):
            if self._restarts:
                start(message.metadata.dst_node_id)
            return spoil(partition, message, answer) if spoil else answer()

        def start(node_id):
            node = grid._contexts[node_id].node_config
            node |= {"state-dir": str(self.folder / str(grid.partitions[node_id])), **self._more}
            grid._contexts[node_id] = Context(1, node_id, node, RecordDict(), config.flat())

        grid = SpoiltGrid(config, meet)
        for node_id in grid.get_node_ids():
            start(node_id)
        server_app(grid, Context(1, 1, {}, RecordDict(), config.flat()))
        return RunReader(directory)

    def files(self, partition, ending="safetensors"):
        return sorted((self.folder / str(partition)).rglob(f"*.{ending}"))


@EVERY_METHOD
def test_a_node_that_is_started_again_goes_on_with_its_state(method, tmp_path):
    """Before every message, which is also between the two exchanges of a round."""
    steady, restarted = Devices(tmp_path / "a"), Devices(tmp_path / "b", restarts=True)
    options = options_of(method)
    expected = outcome(steady.run(tmp_path / "steady", **options))
    assert outcome(restarted.run(tmp_path / "restarted", **options)) == expected
    assert len(restarted.files(HURT)) in (1, 2)


@EVERY_METHOD
def test_work_whose_reply_is_not_used_is_as_if_never_done(method, tmp_path):
    """The last exchange of round 2 is done and dropped, or never reaches the client."""
    results = []
    for done in (True, False):

        def spoil(partition, message, answer, done=done):
            last = message.metadata.message_type.endswith(
                "m_step" if method in TWO_EXCHANGES else "train"
            )
            if (partition, message_round(message)) != (HURT, 2) or not last:
                return answer()
            if done:
                answer()
            return None

        devices = Devices(tmp_path / f"devices-{done}")
        reader = devices.run(tmp_path / f"run-{done}", spoil, **options_of(method))
        assert [row["replies"] for row in reader.rounds] == [4, 3, 4]
        results.append(outcome(reader))
    assert results[0] == results[1]


def damage(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@EVERY_METHOD
def test_a_damaged_state_is_reported_every_round_and_the_run_goes_on(method, tmp_path, caplog):
    devices = Devices(tmp_path / "devices")

    def spoil(partition, message, answer):
        if (partition, message_round(message)) == (HURT, 2) and not devices.files(HURT, "corrupt"):
            (file,) = devices.files(HURT)
            damage(file)
        return answer()

    reader = devices.run(tmp_path / "run", spoil, **options_of(method))
    assert reader.summary["status"] == "completed"
    assert [row["replies"] for row in reader.rounds] == [4, 3, 3]
    second, third = (row["rejected"] for row in reader.rounds[1:])
    assert {each["partition"] for each in second + third} == {HURT}
    file = f"{devices.folder}/{HURT}/"
    assert all(file in each["reason"] for each in second + third)
    assert "SHA-256 differs); set aside as round-1.safetensors.corrupt" in second[0]["reason"]
    assert "the client no longer has it; put a copy of it back" in third[0]["reason"]
    assert [path.name for path in devices.files(HURT, "corrupt")] == ["round-1.safetensors.corrupt"]
    assert devices.files(HURT) == []
    assert f"round 2: client {HURT} dropped: error 2" in caplog.text


@pytest.mark.parametrize("method", ["ditto", "fedspm"])
def test_a_node_may_be_told_to_begin_anew(method, tmp_path, caplog):
    """From the round after the loss on it is used again."""
    devices = Devices(tmp_path / "devices", **{"new-state": True})

    def spoil(partition, message, answer):
        if (partition, message_round(message)) == (HURT, 2) and not devices.files(HURT, "corrupt"):
            damage(devices.files(HURT)[0])
        return answer()

    reader = devices.run(tmp_path / "run", spoil, **options_of(method))
    assert [row["replies"] for row in reader.rounds] == [4, 3, 4]
    assert [file.name for file in devices.files(HURT)] == ["round-3.safetensors"]
    assert [row.get("begun-anew") for row in reader.rounds] == [None, None, [HURT]]
    assert f"round 3: the state of client {HURT} was gone; it began anew" in caplog.text


def test_scaffolds_nodes_may_not_begin_anew(tmp_path):
    devices = Devices(tmp_path / "devices", **{"new-state": True})
    with pytest.raises(Exception, match="new-state = True: the server of scaffold holds the mean"):
        devices.run(tmp_path / "run", **options_of("scaffold"))
    assert not (tmp_path / "run").exists()


@EVERY_METHOD
def test_a_server_stopped_between_exchanges_resumes_bit_for_bit(method, tmp_path):
    """In the last exchange of round 3, when two clients have saved what will never count."""
    options = options_of(method)
    expected = outcome(Devices(tmp_path / "a").run(tmp_path / "unbroken", **options))
    devices, done = Devices(tmp_path / "b"), []

    def stop(partition, message, answer):
        if message_round(message) == 3:
            exchange = message.metadata.message_type
            last = exchange.endswith("m_step" if method in TWO_EXCHANGES else "train")
            if last and len(done) == 2:
                raise KeyboardInterrupt
            done.extend([partition] * last)
        return answer()

    with pytest.raises(KeyboardInterrupt):
        devices.run(tmp_path / "run", stop, **options)
    saved = [file.name for i in done for file in devices.files(i)]
    assert saved.count("round-3.safetensors") == 2
    resumed = devices.run(tmp_path / "run", **options, resume=True)
    assert outcome(resumed) == expected
