"""Devices that hold their own data and measure their own capacity, as real processes."""

import pytest
from federation import federation
from own_folders import digits, nodes_of, write_idx, write_images, write_parquet
from running import TINY, model_bytes, outcome, run

from fedhet_app.results import RunReader

pytestmark = pytest.mark.slow

OPTIONS = {
    **TINY,
    "strategy": "heterofl",
    "dataset": "own",
    "input-shape": "1x8x8",
    "num-classes": 10,
    "partition": "own",
    "max-train-examples": 0,
    "evaluate": "federated",
    "evaluate-every": 1,
    "num-clients": 3,
    "num-server-rounds": 2,
    "fraction-train": 1.0,
    "capacity-tiers": "0.5,1.0",
    "capacity-probs": "0.5,0.5",
    "node-timeout": 300.0,
}
MEASURED = (1, 2)


def nodes(folder):
    """Return the configs of three devices: images, IDX files and parquet, the last two measured."""
    pixels, labels = digits()
    configs = nodes_of(
        [
            write_images(folder / "images", pixels[:200], labels[:200]),
            write_idx(folder / "idx", pixels[200:400], labels[200:400]),
            write_parquet(folder / "parquet", pixels[400:600], labels[400:600]),
        ]
    )
    for i, config in enumerate(configs):
        config["state-dir"] = str(folder / f"state-{i}")
        config["capacity"] = "auto" if i in MEASURED else 0.5
    configs[1]["memory-mb"] = 1e6
    configs[2]["step-ms"] = 1e6
    return configs


def test_devices_of_their_own_data_and_capacity_train_as_in_one_process(tmp_path):
    configs = nodes(tmp_path)
    keys = {key.replace("-", "_"): value for key, value in OPTIONS.items()}
    expected = run(tmp_path / "inline", configs, **keys)
    for i in MEASURED:  # measured anew by the devices
        (tmp_path / f"state-{i}" / "capacity.json").unlink()
    with federation(tmp_path / "devices", configs) as devices:
        run_id = devices.submit({**OPTIONS, "results-dir": str(tmp_path / "run")})
        assert devices.wait_for_end(run_id) == "finished:completed"
        reader = RunReader(tmp_path / "run")
        assert model_bytes(reader) == model_bytes(expected)
        assert outcome(reader) == outcome(expected)
        assert [row["width"] for row in reader.clients[:3]] == [0.5, 1.0, 1.0]
        said = devices.log(run_id)
        for i in MEASURED:
            assert (tmp_path / f"state-{i}" / "capacity.json").exists()
            assert f"client {i} has measured a step of each tier (0.5: " in said

        other = {**OPTIONS, "num-classes": 9, "results-dir": str(tmp_path / "nine")}
        refused = devices.submit(other)
        assert devices.wait_for_end(refused) == "finished:failed"
        assert "has classes 0 to 9, and the run takes 0 to 8" in devices.log(refused)
        assert not (tmp_path / "nine").exists()
