"""The only source of randomness: independent generators, each named by its purpose.

Two methods run with the same seed draw the same partition, capacities, initial weights and
cohorts, because no draw of one purpose advances the generator of another.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

PURPOSES = (
    "allocation",  # round
    "augment",  # partition, round
    "capacity",
    "clusters",  # partition
    "dropout",  # partition, round
    "evaluation",
    "holdout",  # partition
    "init",  # model and draw, from the second on
    "partition",
    "sample",  # round
    "shift",
    "shuffle",  # partition, round
    "subsample",
    "width",  # partition, round
)


def rng_for(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return the generator of one purpose.

    Args:
        seed: The run's seed.
        purpose: One of ``PURPOSES``.
        *keys: Non-negative integers that tell draws of one purpose apart (partition id, round).

    Returns:
        A fresh generator; equal arguments give equal streams on every machine and in every process.

    Raises:
        ValueError: The purpose is not listed.
    """
    if purpose not in PURPOSES:
        raise ValueError(f"unknown purpose {purpose!r}; one of {', '.join(PURPOSES)}")
    digest = hashlib.sha256(purpose.encode()).digest()
    spawn_key = (int.from_bytes(digest[:4], "big"), *keys)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=spawn_key))


@contextmanager
def torch_seeded(seed: int, purpose: str, *keys: int) -> Iterator[None]:
    """Seed torch's generators for the block and put the CPU's state back afterwards."""
    value = int(rng_for(seed, purpose, *keys).integers(2**62))
    # torch.manual_seed would format a stack trace for every device that is not there yet.
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
    try:
        yield
    finally:
        generator.set_state(state)
