import pytest
from torch import nn
from user_models import NETWORKS, build_lstm, image_spec, token_spec

from fedhet_app.models import scaled
from fedhet_app.submodel.slicing import Slicer

CUT = {
    "cnn-gn": tuple(f"block{number}.conv" for number in (1, 2, 3, 4)),
    "resnet8-embedding": (
        "stem",
        "stage1.0.conv1",
        "stage1.0.conv2",
        *(f"stage{n}.0.{layer}" for n in (2, 3) for layer in ("conv1", "conv2", "shortcut.conv")),
    ),
    "flatten": ("0", "4"),
    "residual-bn": tuple(
        f"{n}.{layer}" for n in (0, 1) for layer in ("conv1", "conv2", "shortcut")
    ),
}


@pytest.mark.parametrize("case", CUT)
def test_layers_whose_outputs_a_width_cuts(case):
    assert Slicer(*NETWORKS[case]).cut_layers() == CUT[case]


def test_neither_recurrent_layers_nor_the_classifier_count():
    assert Slicer(build_lstm, token_spec()).cut_layers() == ()


def test_transposed_convolutions_have_their_outputs_in_columns():
    def build(width, spec):
        kept = scaled(8, width)
        return nn.Sequential(nn.ConvTranspose2d(2, kept, 1), nn.ConvTranspose2d(kept, 3, 1))

    assert Slicer(build, image_spec()).cut_layers() == ("0",)
