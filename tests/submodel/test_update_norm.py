import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedhet_app.submodel.update_norm import shortened, update_norm

vectors = hnp.arrays(np.float32, 9, elements=st.floats(-1000, 1000, width=32))


def test_a_norm_by_hand():
    sent = np.array([1, 1, 1], np.float32)
    assert update_norm(sent, np.array([4, 1, 5], np.float32)) == 5.0


def test_an_update_shortened_by_hand():
    sent, returned = np.array([1, 1], np.float32), np.array([4, 5], np.float32)
    assert shortened(sent, returned, 2.5).tolist() == [2.5, 3.0]


def test_the_largest_floats_have_a_norm_and_can_be_shortened():
    largest = np.finfo(np.float32).max
    sent, returned = np.full(2, -largest), np.full(2, largest)
    assert np.isclose(update_norm(sent, returned), np.sqrt(2) * 2 * float(largest))
    short = shortened(np.zeros(2, np.float32), returned, 1.0)
    np.testing.assert_allclose(short, [0.5**0.5] * 2, rtol=1e-6)


@given(sent=vectors, returned=vectors, share=st.floats(0.01, 0.99))
def test_a_shortened_update_has_the_length_and_the_direction(sent, returned, share):
    norm = np.linalg.norm(returned.astype(float) - sent)
    if norm < 1:
        return
    short = shortened(sent, returned, share * norm)
    assert short.dtype == np.float32
    rounding = 1e-4
    assert abs(update_norm(sent, short) - share * norm) < rounding * (1 + norm)
    np.testing.assert_allclose(
        short.astype(float) - sent, share * (returned.astype(float) - sent), atol=rounding * 10
    )
