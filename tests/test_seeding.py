import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedhet_app.seeding import PURPOSES, rng_for, torch_seeded

SEEDS = st.integers(0, 2**31 - 1)


@given(seed=SEEDS, purpose=st.sampled_from(PURPOSES), key=st.integers(0, 10**6))
def test_the_same_draw_twice(seed, purpose, key):
    first, second = (rng_for(seed, purpose, key).integers(2**62, size=4) for _ in range(2))
    assert (first == second).all()


def test_a_stream_is_numpys_own_for_the_named_spawn_key():
    word = int.from_bytes(hashlib.sha256(b"shuffle").digest()[:4], "big")
    expected = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(word, 3, 5)))
    assert (rng_for(7, "shuffle", 3, 5).random(8) == expected.random(8)).all()


@given(seed=SEEDS)
def test_purposes_rounds_and_clients_draw_apart(seed):
    keys = [(purpose,) for purpose in PURPOSES]
    keys += [("shuffle", client, number) for client in range(3) for number in range(3)]
    draws = {int(rng_for(seed, *key).integers(2**62)) for key in keys}
    assert len(draws) == len(keys)


def test_an_unlisted_purpose_is_refused():
    with pytest.raises(ValueError, match="unknown purpose 'luck'; one of allocation"):
        rng_for(1, "luck")


def test_torch_is_seeded_for_the_block_and_put_back():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    draws = []
    for _ in range(2):
        with torch_seeded(3, "dropout", 1, 2):
            draws.append(torch.rand(4))
    assert torch.equal(*draws)
    assert torch.equal(torch.get_rng_state(), before)
