import pytest
from torch import nn

from fedhet_app.submodel.layout import layout_of
from fedhet_app.submodel.shared import shared_index


class _Split(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.encoders = nn.ModuleList([body])
        self.heads = nn.Linear(1, 2)


def test_heads_alone_are_private():
    assert shared_index(layout_of(_Split(nn.Linear(2, 1)))).tolist() == [0, 1, 2]


def test_buffers_behind_the_heads_are_shared():
    """Weight, bias | four of the heads | running mean and variance."""
    index = shared_index(layout_of(_Split(nn.BatchNorm2d(1))))
    assert index.tolist() == [0, 1, 6, 7]


@pytest.mark.parametrize(("private", "shared"), [("other.", 7), ("encoders.", 4), ("", 0)])
def test_another_prefix_may_be_private(private, shared):
    assert len(shared_index(layout_of(_Split(nn.Linear(2, 1))), private)) == shared
