"""A sub-network trains as the full network does whose other coordinates are held at zero."""

import numpy as np
import pytest
import torch
from torch.nn import functional
from user_models import NETWORKS, VOCABULARY

from fedhet_app.models import initial_module
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.submodel.layout import flatten
from fedhet_app.submodel.slicing import Slicer


@pytest.mark.parametrize("name", [name for name in NETWORKS if not name.endswith("-bn")])
@pytest.mark.parametrize(("width", "shift"), [(0.4, 0), (0.5, 0), (0.4, 11)])
def test_masked_full_size_network_takes_the_same_steps(name, width, shift):
    builder, spec = NETWORKS[name]
    start = flatten(initial_module(builder, spec, "default", 11))
    index = Slicer(builder, spec).index(width, shift)
    mask = np.zeros_like(start)
    mask[index] = 1
    sub, masked = FlatModule(builder(width, spec)), FlatModule(builder(1.0, spec))
    sub.load(start[index])
    masked.load(start * mask)
    _train(sub, np.ones_like(sub.numpy()), spec)
    _train(masked, mask, spec)
    np.testing.assert_allclose(masked.numpy()[index], sub.numpy(), atol=1e-5)
    assert np.abs(sub.numpy() - start[index]).max() > 1e-2


def _train(flat, mask, spec):
    """Take five steps of SGD with momentum and weight decay on the unmasked coordinates."""
    generator = torch.Generator().manual_seed(1)
    kept = torch.from_numpy(mask[: flat.layout.num_params])
    momentum = torch.zeros_like(flat.grad)
    for _ in range(5):
        x = torch.randint(VOCABULARY, (6, *spec.input_shape), generator=generator).float() / 2
        y = torch.randint(spec.num_classes, (6,), generator=generator)
        flat.grad.zero_()
        functional.cross_entropy(flat.module(x), y).backward()
        momentum.mul_(0.9).add_(flat.grad * kept).add_(flat.params, alpha=1e-3)
        flat.params.sub_(momentum, alpha=0.05)
