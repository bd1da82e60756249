"""HeteroFL's two ways of averaging against a loop over tensors, labels and clients."""

import numpy as np
import pytest
from running import run, run_spoilt, tiny
from torch import nn

from fedhet_app import task as task_module
from fedhet_app import wire
from fedhet_app.errors import FedhetError
from fedhet_app.models import scaled
from fedhet_app.submodel.layout import unflatten
from fedhet_app.task import Task
from strategies import heterofl

OPTIONS = {
    "strategy": "heterofl",
    "norm": "none",
    "num_server_rounds": 1,
    "fraction_train": 1.0,
    "capacity_tiers": "0.5,1.0",
    "capacity_probs": "0.5,0.5",
}


def expected_model(task, replies, masked, weighting):
    """Average slices by hand: leading parts of every tensor, classifier rows by label."""
    layout = task.slicer.layout(1.0)
    old = unflatten(layout, task.initial_vector())
    total = {name: np.zeros(array.shape) for name, array in old.items()}
    weight = {name: np.zeros(array.shape) for name, array in old.items()}
    labels = task.dataset.train.labels
    for partition, (width, vector) in replies.items():
        rows = task.partition.client(partition)
        share = 1 if weighting == "clients" else len(rows)
        for name, part in unflatten(task.slicer.layout(width), vector).items():
            for row in range(part.shape[0]):
                if masked and name.startswith("classifier") and row not in labels[rows]:
                    continue
                place = (row, *(slice(size) for size in part.shape[1:]))
                total[name][place] += share * part[row]
                weight[name][place] += share
    means = {name: total[name] / np.maximum(weight[name], 1) for name in old}
    return {name: np.where(weight[name] > 0, means[name], old[name]) for name in old}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighting", ["clients", "examples"])
def test_averages_are_those_of_a_loop_over_rows(masked, weighting, tmp_path):
    options = OPTIONS | {
        "heterofl__masked_classifier": masked,
        "heterofl__weighting": weighting,
    }
    replies = {}

    def record(partition, message, answer):
        reply = answer()
        width = float(message.content.config_records[wire.CONFIG]["width"])
        vector = wire.unpack(reply.content.array_records[wire.ARRAYS])
        replies[partition] = (width, np.array(vector))
        return reply

    reader = run_spoilt(tmp_path / "run", record, **options)
    task = Task(tiny(tmp_path, **options))
    held = task.histograms > 0
    assert not held.all()
    assert len({width for width, _ in replies.values()}) == 2
    expected = expected_model(task, replies, masked, weighting)
    for name, array in reader.model().items():
        np.testing.assert_allclose(array, expected[name], atol=1e-6)


def test_a_row_that_no_client_of_the_round_holds_keeps_every_bit(tmp_path):
    options = OPTIONS | {"num_clients": 3, "alpha": 0.05, "fraction_train": 0.34}
    reader = run(tmp_path / "run", heterofl__masked_classifier=True, **options)
    task = Task(tiny(tmp_path, **options))
    (trained,) = (row["partition"] for row in reader.clients if row["trained"])
    absent = task.histograms[trained] == 0
    assert 0 < absent.sum() < 10
    before = unflatten(task.slicer.layout(1.0), task.initial_vector())["classifier.bias"]
    after = reader.model()["classifier.bias"]
    np.testing.assert_array_equal(after == before, absent)


class _Transposed(nn.Module):
    def __init__(self, hidden, num_classes):
        super().__init__()
        self.hidden = nn.Linear(64, hidden)
        self.columns = nn.Parameter(nn.init.normal_(nn.Linear(num_classes, hidden).weight.detach()))

    def forward(self, x):
        return self.hidden(x.flatten(1)) @ self.columns


def without_class_rows(width, spec):
    return _Transposed(scaled(6, width), spec.num_classes)


def without_cut_layers(width, spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, spec.num_classes))


@pytest.mark.parametrize(
    ("builder", "option", "message"),
    [
        (without_class_rows, "masked_classifier", "no layer of the network has one row per class"),
        (without_cut_layers, "scaler", "no convolution or linear layer has fewer outputs"),
    ],
)
def test_options_that_the_network_cannot_follow_are_refused(
    builder, option, message, tmp_path, monkeypatch
):
    monkeypatch.setattr(task_module, "builder_for", lambda name: builder)
    config = tiny(tmp_path, strategy="heterofl", **{f"heterofl__{option}": True})
    with pytest.raises(FedhetError, match=message) as caught:
        heterofl.at_cap(Task(config), np.ones(6))
    assert caught.value.key == f"heterofl.{option.replace('_', '-')}"
