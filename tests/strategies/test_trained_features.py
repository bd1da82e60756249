"""FedGMM over the routing features of a finished run: whose they are, and who sees the run."""

import json
import shutil

import numpy as np
import pytest
import torch
from running import MIXTURE, interrupted, model_bytes, outcome, run, run_spoilt, tiny
from safetensors.numpy import load_file, save_file
from torch.nn import functional as F

from fedhet_app import wire
from fedhet_app.errors import FedhetError
from fedhet_app.gaussian_model import gaussian_model_of
from fedhet_app.task import task_for

OPTIONS = {
    **MIXTURE,
    "strategy": "fedgmm",
    "fedgmm__gaussians": 2,
    "fedgmm__components": 2,
    "fedgmm__dimensions": 4,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of FedSPM, whose encoder is no longer as it was drawn."""
    return run(tmp_path_factory.mktemp("runs") / "fedspm", **MIXTURE)


@pytest.fixture
def over(trained, tmp_path):
    """Return options with the features of a copy of that run, which a test may delete."""
    shutil.copytree(trained.directory, tmp_path / "fedspm")
    return {**OPTIONS, "fedgmm__features": str(tmp_path / "fedspm")}


def encoded(tensors, images):
    """The embeddings that tensors of the encoder `small` give, by torch's functions."""
    x = torch.tensor((np.array(images, dtype=np.float32) - 127.5) / 127.5).permute(0, 3, 1, 2)
    own = {name.removeprefix("router.encoders.0."): torch.tensor(t) for name, t in tensors.items()}
    for conv, norm, groups in (("0", "1", 4), ("3", "4", 8)):
        x = F.conv2d(x, own[f"{conv}.weight"], own[f"{conv}.bias"], stride=2, padding=1)
        x = F.relu(F.group_norm(x, groups, own[f"{norm}.weight"], own[f"{norm}.bias"]))
    x = F.linear(x.flatten(1), own["7.weight"], own["7.bias"])
    return F.relu(F.layer_norm(x, (8,), own["8.weight"], own["8.bias"])).double().numpy()


def test_the_gaussians_are_over_the_features_of_the_run(trained, over, tmp_path):
    reader = run(tmp_path / "run", **over)
    model, theirs = reader.model(), trained.model()
    dataset = task_for(tiny(tmp_path / "run", **over)).dataset
    h = encoded(theirs, dataset.train.inputs)
    np.testing.assert_allclose(model["projection.center"], h.mean(axis=0), atol=1e-5)
    z = (h - h.mean(axis=0)) @ model["projection.axes"].T
    np.testing.assert_allclose(np.cov(z.T, bias=True), np.eye(4), atol=1e-3)
    for name, tensor in theirs.items():
        if name.startswith("router.encoders.0."):
            own = model[name.replace("router.encoders.0.", "encoder.")]
            assert own.tobytes() == tensor.tobytes(), name
    drawn = run(tmp_path / "drawn", **OPTIONS)
    assert model_bytes(drawn) != model_bytes(reader)
    assert not any(name.startswith("encoder") for name in drawn.model())


def test_clients_need_not_see_the_run_nor_keep_its_encoder(over, tmp_path):
    """The run is gone before the first message, and every client is as it starts at each."""
    whole = run(tmp_path / "whole", **over)
    sizes = set()

    def forgets(partition, message, answer):
        shutil.rmtree(over["fedgmm__features"], ignore_errors=True)
        gaussian_model_of.cache_clear()
        if message.metadata.message_type == wire.E_STEP:
            sizes.add(len(wire.unpack(message.content["arrays"])))
        return answer()

    assert outcome(run_spoilt(tmp_path / "run", forgets, **over)) == outcome(whole)
    convolutions = 16 * (9 * 3 + 1) + 32 * (9 * 16 + 1) + 2 * (16 + 32)
    assert sizes == {convolutions + (32 * 2 * 2 + 1) * 8 + 2 * 8}


def test_a_resumed_run_has_the_encoder_from_its_checkpoint(over, tmp_path):
    whole = run(tmp_path / "whole", **over)
    interrupted(tmp_path / "halves", 2, **over)
    shutil.rmtree(over["fedgmm__features"])
    assert outcome(run(tmp_path / "halves", resume=True, **over)) == outcome(whole)


def without_model(folder):
    (folder / "model.safetensors").unlink()


def with_another_encoder(folder):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["router.encoders.0.7.weight"] = tensors["router.encoders.0.7.weight"][:, :-1].copy()
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("spoil", "options", "reason"),
    [
        (shutil.rmtree, {}, "holds no config.json: not a run"),
        (without_model, {}, "holds no model.safetensors: the run has not finished"),
        (with_another_encoder, {}, "holds another encoder than its config says .*size mismatch"),
        (None, {"routing__embedding": 9}, "has routing.embedding = 8, and this run 9; set the"),
        (None, {"seed": 43}, "its clients have other data; name a run of the same data set"),
        (None, {"dual__amplitude": 0.1}, "its clients have other data"),
    ],
    ids=["no run", "not finished", "another encoder", "embedding", "seed", "images"],
)
def test_a_run_that_cannot_give_the_features_is_refused(spoil, options, reason, over, tmp_path):
    if spoil:
        spoil(tmp_path / "fedspm")
    with pytest.raises(FedhetError, match=rf"fedgmm.features = '.*fedspm': .*{reason}") as caught:
        run(tmp_path / "run", **{**over, **options})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"strategy": "fedem"}, "a run of fedem trains no routing encoder; name one of fedspm"),
        ({"strategy": "fedgmm", "fedgmm__dimensions": 4}, "a run of fedgmm trains no routing"),
        ({"fedspm__encoders": "per-component"}, "has an encoder for each component"),
    ],
)
def test_a_run_of_another_kind_is_refused(options, reason, tmp_path):
    other = run(tmp_path / "other", **{**MIXTURE, "num_server_rounds": 1, **options})
    with pytest.raises(FedhetError, match=reason):
        run(tmp_path / "run", **{**OPTIONS, "fedgmm__features": str(other.directory)})


def test_a_relative_path_is_refused_below_the_command_line(tmp_path):
    with pytest.raises(FedhetError, match=r"fedgmm.features = 'fedspm': must be an absolute path"):
        run(tmp_path / "run", **{**OPTIONS, "fedgmm__features": "fedspm"})


def test_the_command_line_makes_the_path_absolute(trained, tmp_path, monkeypatch, fedhet):
    monkeypatch.chdir(trained.directory.parent)
    values = "strategy=fedgmm partition=dual num-clients=4 fedgmm.features=fedspm"
    status, out, err = fedhet("run", "--dry-run", "--set", values)
    assert (status, err) == (0, "")
    assert f"fedgmm.features = {json.dumps(str(trained.directory))}" in out
