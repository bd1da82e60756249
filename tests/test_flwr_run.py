"""``flwr run`` itself, as a user types it, on a SuperLink of this module's own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import TINY, model_bytes, run

from fedhet_app.results import RunReader

ROOT = Path(__file__).resolve().parents[1]
FLWR = str(Path(sys.executable).with_name("flwr"))
NODES = 4
PATIENCE = 240

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def processes_of(home):
    """Return the ids of the processes that were started with this FLWR_HOME."""
    marker = f"FLWR_HOME={home}".encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
        except OSError:
            continue
    return found


def end_all(home):
    for kind in (signal.SIGTERM, signal.SIGKILL):
        give_up = time.monotonic() + 15
        while (left := processes_of(home)) and time.monotonic() < give_up:
            for pid in left:
                try:
                    os.kill(pid, kind)
                except ProcessLookupError:
                    continue
            time.sleep(0.5)
        if not left:
            return


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    """Call ``flwr`` in an empty folder; the first run starts the SuperLink, which ends here."""
    home = tmp_path_factory.mktemp("flower")
    empty = tmp_path_factory.mktemp("empty")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }

    def call(*arguments):
        done = subprocess.run(
            [FLWR, *map(str, arguments), "--format", "json"],
            cwd=empty,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        answer = json.loads(done.stdout)
        assert answer["success"], answer
        return answer

    yield call
    end_all(str(home))
    assert not processes_of(str(home))


def status_of(flower, preset):
    """Submit a run, wait for its end and return how it ended, by ``flwr list``."""
    federation = f"num-supernodes={NODES} client-resources-num-cpus=1"
    started = flower("run", ROOT, "--run-config", preset, "--federation-config", federation)
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        (listed,) = flower("list", "--run-id", started["run-id"])["runs"]
        if listed["status"].startswith("finished"):
            return listed["status"]
        time.sleep(2)
    pytest.fail(f"not finished after {PATIENCE} s")


def preset_of(path, **options):
    keys = {**TINY, **{key.replace("__", ".").replace("_", "-"): v for key, v in options.items()}}
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))
    return path


OPTIONS = {
    "has-fl": {"has_fl__warmup": 0, "has_fl__adapt_every": 1},
    "scaffold": {"momentum": 0.0, "weight_decay": 0.0},
}


@pytest.mark.parametrize(
    "strategy",
    ["has-fl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedprox", "scaffold"))],
)
def test_flwr_run_ends_with_the_bits_of_the_process(strategy, flower, tmp_path):
    options = {"strategy": strategy, **OPTIONS.get(strategy, {})}
    directory = tmp_path / "run"
    preset = preset_of(tmp_path / "preset.toml", results_dir=str(directory), **options)
    assert status_of(flower, preset) == "finished:completed"
    reader = RunReader(directory)
    assert reader.config["num-clients"] == NODES  # the preset says another number
    assert reader.summary["rejected"] == 0
    inline = run(tmp_path / "inline", **options, num_clients=NODES)
    assert model_bytes(reader) == model_bytes(inline)


@pytest.mark.slow
def test_flwr_run_tells_of_a_mistake(flower, tmp_path):
    preset = preset_of(tmp_path / "preset.toml", results_dir="relative")
    assert status_of(flower, preset) == "finished:failed"
