"""The HuggingFace hub, asked in a way that fails soon where it cannot be reached."""

from collections.abc import Iterator
from contextlib import contextmanager

import datasets
import huggingface_hub

from fedhet_app.data.sources import Source
from fedhet_app.errors import FedhetError, one_line

_PROBE_SECONDS = 10


def read_hub(source: Source) -> list[datasets.Dataset]:
    """Load the training and the test split from the hub.

    Out of its reach, what its client has in a cache of its own is taken.

    Raises:
        FedhetError: The hub does not give the data set, or it has no such split.
    """
    offline: Exception | None = None
    try:
        huggingface_hub.HfApi().dataset_info(source.place, timeout=_PROBE_SECONDS)
    except Exception as problem:
        offline = problem
    try:
        with _no_network(offline is not None):
            found = datasets.load_dataset(source.place)
    # The hub's client has no common error class either; every failure has the same remedy.
    except Exception as problem:
        raise FedhetError(
            "dataset",
            source.name,
            f"not on this machine, and the hub did not give it ({one_line(offline or problem)});"
            " set data-dir to its folder, or FEDHET_DATA to a folder of one folder per data set",
        ) from problem
    for split in ("train", source.test_split):
        if split not in found:
            have = ", ".join(found)
            remedy = f"{source.place} has no split {split!r}; it has {have}"
            raise FedhetError("test-split", source.test_split, remedy)
    return [found["train"], found[source.test_split]]


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
