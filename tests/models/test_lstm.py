import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from running import run
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from fedhet_app.config import parse
from fedhet_app.errors import FedhetError
from fedhet_app.models import ModelSpec, check_logits, cnn, initial_module, lstm
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.submodel.layout import flatten
from fedhet_app.submodel.slicing import Slicer
from fedhet_app.training import Windows

TEXT = ModelSpec(input_shape=(80,), num_classes=95, vocabulary=95)
SHORT = ModelSpec(input_shape=(6,), num_classes=95, vocabulary=95)


def shapes(module):
    return {name: tuple(p.shape) for name, p in module.named_parameters()}


@pytest.mark.parametrize(("preset", "hidden"), [("small", 128), ("paper", 256)])
def test_embedding_and_output_rows_are_whole_at_every_width(preset, hidden):
    spec = ModelSpec(input_shape=(80,), num_classes=95, vocabulary=95, preset=preset)
    for width in (1.0, 0.25):
        kept = int(hidden * width)
        assert shapes(lstm.build(width, spec)) == {
            "embedding.weight": (95, 8),
            "lstm.weight_ih_l0": (4 * kept, 8),
            "lstm.weight_hh_l0": (4 * kept, kept),
            "lstm.bias_ih_l0": (4 * kept,),
            "lstm.bias_hh_l0": (4 * kept,),
            "lstm.weight_ih_l1": (4 * kept, kept),
            "lstm.weight_hh_l1": (4 * kept, kept),
            "lstm.bias_ih_l1": (4 * kept,),
            "lstm.bias_hh_l1": (4 * kept,),
            "output.weight": (95, kept),
            "output.bias": (95,),
        }
        check_logits(lstm.build, width, spec)


def test_the_slice_keeps_the_leading_units_of_each_gate():
    full = initial_module(lstm.build, SHORT, "default", 0)
    kept = 39  # ceil(0.3 * 128)
    cut = {name: value.detach().numpy() for name, value in full.named_parameters()}
    for name, value in cut.items():
        if name.startswith("lstm"):
            gates = value.reshape(4, 128, -1)[:, :kept]
            columns = gates if name.endswith("ih_l0") else gates[..., :kept]
            cut[name] = columns.reshape(4 * kept, *columns.shape[2:])
    cut["output.weight"] = cut["output.weight"][:, :kept]
    expected = np.concatenate([value.ravel() for value in cut.values()])
    index = Slicer(lstm.build, SHORT).index(0.3)
    np.testing.assert_array_equal(flatten(full)[index], expected)


def by_hand(module, symbols):
    """Logits by the equations of an LSTM, in double precision."""
    values = {name: value.detach().double().numpy() for name, value in module.named_parameters()}
    inputs = values["embedding.weight"][symbols]  # (B, L, 8)
    for layer in range(2):
        w_ih, w_hh, b_ih, b_hh = (
            values[f"lstm.{name}_l{layer}"]
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        hidden = cell = np.zeros((len(symbols), w_hh.shape[1]))
        states = []
        for step in range(inputs.shape[1]):
            gates = inputs[:, step] @ w_ih.T + b_ih + hidden @ w_hh.T + b_hh
            i, f, g, o = np.split(gates, 4, axis=1)
            i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
            cell = f * cell + i * np.tanh(g)
            hidden = o * np.tanh(cell)
            states.append(hidden)
        inputs = np.stack(states, axis=1)
    return inputs[:, -1] @ values["output.weight"].T + values["output.bias"]


def test_logits_are_of_the_symbol_behind_the_window():
    module = initial_module(lstm.build, SHORT, "default", 3)
    symbols = np.random.default_rng(0).integers(95, size=(4, 6))
    flat = FlatModule(module)
    for inference in (False, True):
        with torch.inference_mode(inference):
            logits = flat.module(torch.from_numpy(symbols)).detach().numpy()
        np.testing.assert_allclose(logits, by_hand(module, symbols), atol=1e-5)


def train(flat, mask):
    """Take five clipped steps on the unmasked coordinates."""
    generator = torch.Generator().manual_seed(1)
    momentum = torch.zeros_like(flat.grad)
    for _ in range(5):
        symbols = torch.randint(95, (6, 6), generator=generator)
        labels = torch.randint(95, (6,), generator=generator)
        flat.grad.zero_()
        cross_entropy(flat.module(symbols), labels).backward()
        momentum.mul_(0.9).add_(flat.grad * mask).add_(flat.params, alpha=1e-4)
        flat.params.sub_(momentum, alpha=0.5)


@pytest.mark.parametrize("width", [0.25, 0.6075])
def test_a_slice_trains_as_the_full_network_with_the_rest_at_zero(width):
    start = flatten(initial_module(lstm.build, SHORT, "default", 11))
    index = Slicer(lstm.build, SHORT).index(width)
    mask = np.zeros_like(start)
    mask[index] = 1
    sub, masked = FlatModule(lstm.build(width, SHORT)), FlatModule(lstm.build(1.0, SHORT))
    sub.load(start[index])
    masked.load(start * mask)
    train(sub, torch.ones(len(index)))
    train(masked, torch.from_numpy(mask))
    np.testing.assert_allclose(masked.numpy()[index], sub.numpy(), atol=1e-5)
    assert np.abs(sub.numpy() - start[index]).max() > 1e-2


def test_windows_come_as_symbols_and_labels():
    symbols = torch.arange(12, dtype=torch.uint8).view(4, 3)
    batch, labels = Windows(symbols=symbols, labels=torch.arange(4)).batch(torch.tensor([2, 0]))
    assert batch.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert batch.dtype == labels.dtype == torch.int64
    assert labels.tolist() == [2, 0]


def test_text_and_images_are_not_mixed_up():
    image = ModelSpec(input_shape=(1, 28, 28), num_classes=62)
    with pytest.raises(FedhetError, match=r"model = 'lstm': takes text.*use cnn"):
        lstm.build(1.0, image)
    with pytest.raises(FedhetError, match=r"model = 'cnn': takes images.*only lstm reads it"):
        cnn.build(1.0, TEXT)
    with pytest.raises(FedhetError, match=r"preset = 'huge': unknown; use one of small, paper"):
        lstm.build(1.0, ModelSpec(input_shape=(80,), num_classes=95, vocabulary=95, preset="huge"))


def test_options_without_effect_are_refused():
    with pytest.raises(FedhetError, match=r"norm = 'none': has no effect with model = lstm"):
        parse({"dataset": "shakespeare", "model": "lstm", "norm": "none"})
    with pytest.raises(
        FedhetError, match=r"label-column = 'y': has no effect with dataset = shake"
    ):
        parse({"dataset": "shakespeare", "model": "lstm", "label-column": "y"})


class _Bag(nn.Module):
    def __init__(self, spec, hidden):
        super().__init__()
        self.vocabulary = spec.vocabulary
        self.layers = nn.Sequential(
            nn.Linear(spec.vocabulary, hidden), nn.ReLU(), nn.Linear(hidden, spec.num_classes)
        )

    def forward(self, symbols):
        return self.layers(one_hot(symbols, self.vocabulary).float().mean(dim=1))


def build_bag(width, spec):
    """A network of a user's own: the share of each symbol in the window, one hidden layer."""
    return _Bag(spec, int(8 * width))


@pytest.fixture
def plays(tmp_path):
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abc "), size=700)) for _ in range(6)]
    columns = {"role_id": [f"role {number}" for number in range(6)], "text": texts}
    (tmp_path / "plays").mkdir()
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "plays" / "roles.parquet")
    return str(tmp_path / "plays")


@pytest.mark.parametrize("model", ["lstm", "test_lstm:build_bag"])
@pytest.mark.parametrize("partition", ["natural", "iid"])
def test_a_federation_on_text(tmp_path, plays, model, partition):
    reader = run(
        tmp_path / "run",
        strategy="heterofl",
        dataset="shakespeare",
        data_dir=plays,
        model=model,
        partition=partition,
        num_server_rounds=1,
        max_train_examples=0,
    )
    assert reader.summary["status"] == "completed"
    assert 0 < reader.summary["final-loss"] < 6
    assert {row["examples"] for row in reader.clients} <= {6}
