"""What a network of the user's own can get wrong is one error before anything starts."""

import pytest
import torch
import user_models
from running import tiny
from torch import nn

from fedhet_app import task as task_module
from fedhet_app.errors import FedhetError
from fedhet_app.models import ModelSpec, build_on_meta, check_logits
from fedhet_app.task import Task

SPEC = ModelSpec(input_shape=(1, 8, 8), num_classes=10)


def net(features, logits):
    return nn.Sequential(nn.Flatten(), nn.Linear(features, logits))


def raising(width, spec):
    raise ZeroDivisionError("of\nthe builder")


def unreadable(width, spec):
    return net(64, int(torch.ones(1).item()))


def without_spec(width):
    return net(64, 10)


def nothing(width, spec):
    return None


def lazy(width, spec):
    return nn.LazyLinear(10)


def misfit(width, spec):
    return net(63, 10)


def other_classes(width, spec):
    return net(64, 11)


def images(width, spec):
    return nn.Identity()


class _Pair(nn.Module):
    def forward(self, x):
        return x, x


def pair(width, spec):
    return _Pair()


def misfit_when_narrow(width, spec):
    return net(64, 10) if width > 0.5 else net(63, 10)


BUILDERS = {
    raising: "cannot be built as build.*ZeroDivisionError: of the builder",
    unreadable: "meta device; read no tensor's values",
    without_spec: "cannot be built as build.*TypeError: .*takes 1 positional argument",
    nothing: "must return a torch.nn.Module, not NoneType",
    lazy: "has lazy layers",
}
NETWORKS = {
    misfit: r"its forward fails for examples of shape \(1, 8, 8\) at width 1 on.*RuntimeError: ",
    other_classes: r"gives \(2, 11\) for 2 .*; must give logits of shape \(2, 10\)",
    images: r"gives \(2, 1, 8, 8\) for 2",
    pair: r"gives tuple for 2",
    misfit_when_narrow: r"its forward fails .* at width 0.25 on",
}


@pytest.mark.parametrize("builder", BUILDERS)
def test_builders_that_break_the_contract_are_refused(builder):
    with pytest.raises(FedhetError, match=BUILDERS[builder]) as caught:
        build_on_meta(builder, 1.0, SPEC)
    assert (caught.value.key, caught.value.value) == ("model", builder.__name__)


@pytest.mark.parametrize("builder", [*BUILDERS, *NETWORKS])
def test_a_task_is_checked_before_anything_starts(builder, tmp_path, monkeypatch):
    monkeypatch.setattr(task_module, "builder_for", lambda name: builder)
    with pytest.raises(FedhetError, match=(BUILDERS | NETWORKS)[builder]) as caught:
        Task(tiny(tmp_path, model="user:network")).check()
    assert caught.value.key == "model"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", user_models.NETWORKS)
def test_networks_that_keep_the_contract_pass(case):
    builder, spec = user_models.NETWORKS[case]
    before = torch.get_rng_state()
    for width in (1.0, 0.25):
        check_logits(builder, width, spec)
    assert torch.equal(before, torch.get_rng_state())


def test_an_error_that_the_builder_words_itself_stays():
    with pytest.raises(FedhetError, match="needs images of 8x8 or more"):
        check_logits(user_models.cnn.build, 1.0, ModelSpec(input_shape=(1, 4, 4), num_classes=2))
