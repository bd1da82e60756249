"""The HuggingFace hub, asked in a way that fails soon where it cannot be reached."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import datasets
import huggingface_hub

from fedhet_app.data.folders import split_files
from fedhet_app.data.sources import Source
from fedhet_app.errors import FedhetError, one_line

Answer = TypeVar("Answer")

_PROBE_SECONDS = 10


def read_hub(source: Source) -> list[datasets.Dataset]:
    """Load the training and the test split from the hub; of a set in one piece the training split.

    Out of its reach, what its client has in a cache of its own is taken.

    Raises:
        FedhetError: The hub does not give the data set, or it has no such split.
    """
    found = _ask(source, lambda: datasets.load_dataset(source.place))
    splits = ["train", source.test_split]
    if source.known.whole and source.test_split == "test" and "test" not in found:
        splits = ["train"]
    for split in splits:
        if split not in found:
            have = ", ".join(found)
            remedy = f"{source.place} has no split {split!r}; it has {have}"
            raise FedhetError("test-split", source.test_split, remedy)
    return [found[split] for split in splits]


def fetch_idx(source: Source) -> Source:
    """Fetch the IDX files of a data set that the hub has in that form.

    Returns:
        The source of the fetched files.

    Raises:
        FedhetError: The hub does not give them.
    """
    pattern = f"{source.known.idx_prefix}*-ubyte*"
    fetched = _ask(
        source,
        lambda: huggingface_hub.snapshot_download(
            source.place, repo_type="dataset", allow_patterns=pattern
        ),
    )
    kind, train, test = split_files(Path(fetched), source.test_split, source.known)
    return replace(source, kind=kind, train=train, test=test)


def _ask(source: Source, load: Callable[[], Answer]) -> Answer:
    """Return what the hub, or its client's cache, gives.

    Raises:
        FedhetError: Neither gives it.
    """
    offline: Exception | None = None
    try:
        huggingface_hub.HfApi().dataset_info(source.place, timeout=_PROBE_SECONDS)
    except Exception as problem:
        offline = problem
    try:
        with _no_network(offline is not None):
            return load()
    # The hub's client has no common error class either; every failure has the same remedy.
    except Exception as problem:
        raise FedhetError(
            "dataset",
            source.name,
            f"not on this machine, and the hub did not give it ({one_line(offline or problem)});"
            " set data-dir to its folder, or FEDHET_DATA to a folder of one folder per data set",
        ) from problem


@contextmanager
def _no_network(wanted: bool) -> Iterator[None]:
    """Make the hub's client use its cache or fail at once; its retries last 20 seconds a file."""
    settings = (datasets.config, huggingface_hub.constants)
    before = [module.HF_HUB_OFFLINE for module in settings]
    for module, value in zip(settings, before, strict=True):
        module.HF_HUB_OFFLINE = wanted or value
    try:
        yield
    finally:
        for module, value in zip(settings, before, strict=True):
            module.HF_HUB_OFFLINE = value
