import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedhet_app.data import cache, cached_partition, load_dataset, store
from fedhet_app.errors import FedhetError

OPTIONS = {"kind": "iid", "num_clients": 4, "alpha": 1.0, "balance_mask": False, "seed": 0}


def entries(own_cache, kind):
    return sorted(path.name for path in (own_cache / kind).iterdir())


def test_the_folder_is_found_in_the_environment(monkeypatch, tmp_path):
    assert cache.cache_root() == tmp_path / "cache"
    monkeypatch.delenv("FEDHET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_root() == tmp_path / "xdg" / "fedhet"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / ".cache" / "fedhet"


def test_an_entry_appears_only_when_it_is_complete(own_cache):
    target = cache.entry("kind", "hub:a/b", "k" * 64)
    assert target.name.startswith("hub-a-b-")
    with cache.staged(target) as folder:
        (folder / "file").write_text("half")
        assert not target.exists()
    assert (target / "file").read_text() == "half"
    assert entries(own_cache, "kind") == [target.name]


def test_an_error_leaves_nothing_behind(own_cache):
    target = cache.entry("kind", "x", "k")
    with pytest.raises(KeyError), cache.staged(target) as folder:
        (folder / "file").touch()
        raise KeyError
    assert entries(own_cache, "kind") == []


def test_the_first_of_two_writers_wins(own_cache):
    target = cache.entry("kind", "x", "k")
    with cache.staged(target) as slow:
        (slow / "file").write_text("slow")
        with cache.staged(target) as quick:
            (quick / "file").write_text("quick")
    assert (target / "file").read_text() == "quick"
    assert entries(own_cache, "kind") == [target.name]


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDHET_CACHE", str(tmp_path / "file"))
    with pytest.raises(FedhetError, match=r"FEDHET_CACHE = .*cannot be written.*set FEDHET_CACHE"):
        load_dataset("digits")


def test_a_full_disk(monkeypatch, own_cache):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_chunks", full)
    with pytest.raises(FedhetError, match=r"No space left on device.*set FEDHET_CACHE"):
        load_dataset("digits")
    assert entries(own_cache, "datasets") == []


@pytest.mark.parametrize("file", ["meta.json", "train-inputs.npy", "test-labels.npy"])
@pytest.mark.parametrize("damage", ["missing", "empty", "short", "other"])
def test_a_damaged_data_set_says_what_to_delete(own_cache, file, damage):
    load_dataset("digits")
    (folder,) = (own_cache / "datasets").iterdir()
    path = folder / file
    content = path.read_bytes()
    path.unlink()
    if damage == "other":
        with path.open("wb") as stream:
            np.save(stream, np.zeros(3, dtype=np.float32))
    elif damage != "missing":
        path.write_bytes(content[: len(content) // 2] if damage == "short" else b"")
    with pytest.raises(FedhetError, match=rf"FEDHET_CACHE = '{folder}': .*damaged.*delete it"):
        load_dataset("digits")


def test_a_damaged_partition_says_what_to_delete(own_cache):
    cached_partition("f", np.zeros(8, dtype=np.int64), **OPTIONS)
    (folder,) = (own_cache / "partitions").iterdir()
    (folder / "order.npy").write_bytes(b"")
    with pytest.raises(FedhetError, match=rf"FEDHET_CACHE = '{folder}': .*damaged"):
        cached_partition("f", np.zeros(8, dtype=np.int64), **OPTIONS)


def run_script(text):
    return subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


ONE_OF_MANY = """
import fedhet_app.data
dataset = fedhet_app.data.load_dataset("digits")
print(dataset.fingerprint, dataset.train.inputs.sum())
"""


def test_many_at_once_read_the_same(own_cache):
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(run_script, [ONE_OF_MANY] * 4))
    assert [one.returncode for one in done] == [0] * 4, [one.stderr for one in done]
    dataset = load_dataset("digits")
    assert {one.stdout for one in done} == {f"{dataset.fingerprint} {dataset.train.inputs.sum()}\n"}
    assert len(entries(own_cache, "datasets")) == 1


def test_writes_to_a_mapped_array_stay_private():
    load_dataset("digits").train.inputs[:] = 0
    assert load_dataset("digits").train.inputs.any()


WORKER = """
import sys
import fedhet_app.seeding
before = set(sys.modules)
import fedhet_app.data
dataset = fedhet_app.data.load_dataset("digits")
partition = fedhet_app.data.cached_partition(
    dataset.fingerprint, dataset.train.labels,
    kind="dirichlet", num_clients=3, alpha=1.0, balance_mask=False, seed=5,
)
heavy = {"datasets", "flwr_datasets", "huggingface_hub", "pandas", "pyarrow", "PIL", "sklearn"}
assert not heavy & (set(sys.modules) - before), heavy & set(sys.modules)
print(dataset.fingerprint, partition.fingerprint)
"""


def test_a_worker_with_a_warm_cache_imports_no_reader():
    dataset = load_dataset("digits")
    options = {**OPTIONS, "kind": "dirichlet", "num_clients": 3, "seed": 5}
    partition = cached_partition(dataset.fingerprint, dataset.train.labels, **options)
    done = run_script(WORKER)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [dataset.fingerprint, partition.fingerprint]
