"""Rounds of FedGMM: its limit, its Gaussians, what travels, what is believed."""

import numpy as np
import PIL.Image
import pytest
import torch
from running import MIXTURE, model_bytes, run, run_spoilt, spoiling, tiny
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA

from client_apps.fedgmm import log_likelihoods
from fedhet_app import wire
from fedhet_app.errors import FedhetError
from fedhet_app.gaussian_model import MASS, MOMENTS, gaussian_model_of
from fedhet_app.task import task_for

OPTIONS = {
    **MIXTURE,
    "strategy": "fedgmm",
    "fedgmm__gaussians": 2,
    "fedgmm__components": 3,
    "fedgmm__dimensions": 4,
}
ONE = {**OPTIONS, "fedgmm__gaussians": 1, "fedgmm__components": 1}
AWAY = 2
SIDE = 4 + 1


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "fedgmm", **OPTIONS)


def features_of(task):
    """z of all training examples, from pooled features of the encoder."""
    rows = torch.arange(len(task.dataset.train.labels))
    h = gaussian_model_of(task).features(task.train_examples, rows).numpy()
    return h, PCA(4, whiten=True).fit(h)


@pytest.mark.parametrize("options", [{}, {"norm": "bn", "augment": "crop-flip"}])
def test_one_gaussian_and_one_classifier_are_fedavg(options, tmp_path):
    one = run(tmp_path / "one", **ONE, **options)
    fedavg = run(tmp_path / "fedavg", **{**ONE, **options, "strategy": "fedavg"})
    expected, found = fedavg.model(), one.model()
    assert set(found) - set(expected) == {
        "projection.center",
        "projection.axes",
        "gaussians.means",
        "gaussians.covariances",
        "tau",
    }
    for name, tensor in expected.items():
        assert tensor.tobytes() == found[name].tobytes(), name


def test_one_gaussian_is_that_of_pooled_features(tmp_path):
    """The standardised features of all clients have mean 0 and covariance I, and epsilon more."""
    reader = run(tmp_path / "run", **ONE)
    model, task = reader.model(), task_for(tiny(tmp_path / "run", **ONE))
    h, pca = features_of(task)
    np.testing.assert_allclose(model["projection.center"], h.mean(axis=0), atol=1e-5)
    z = (h - model["projection.center"]) @ model["projection.axes"].T
    np.testing.assert_allclose(np.abs(z), np.abs(pca.transform(h)), rtol=5e-3, atol=5e-3)
    np.testing.assert_allclose(model["gaussians.means"], np.zeros((1, 4)), atol=1e-4)
    np.testing.assert_allclose(model["gaussians.covariances"][0], 1.1 * np.eye(4), atol=1e-3)


def test_equal_classifiers_leave_the_gaussians_to_themselves(tmp_path):
    """Without a learning rate that moves them, one classifier is a mixture of Gaussians (NumPy)."""
    options = {**ONE, "fedgmm__gaussians": 3, "lr": 1e-12, "momentum": 0.0, "weight_decay": 0.0}
    reader = run(tmp_path / "run", **options)
    model, task = reader.model(), task_for(tiny(tmp_path / "run", **options))
    h, _ = features_of(task)
    z = (h - model["projection.center"]) @ model["projection.axes"].T
    start = gaussian_model_of(task).split(gaussian_model_of(task).initial).gaussians
    means, covariances = start.means, start.covariances
    clients = [np.array(task.partition.client(i)) for i in range(4)]
    pi = np.full((4, 3), 1 / 3)
    for _ in range(3):
        q = np.zeros((len(z), 3))
        densities = np.array(
            [multivariate_normal(m, c).pdf(z) for m, c in zip(means, covariances, strict=True)]
        ).T
        for i, rows in enumerate(clients):
            joint = pi[i] * densities[rows]
            q[rows] = joint / joint.sum(axis=1, keepdims=True)
            pi[i] = q[rows].mean(axis=0)
        means = q.T @ z / q.sum(axis=0)[:, None]
        covariances = np.array(
            [np.cov(z.T, aweights=q[:, a], bias=True) + 0.1 * np.eye(4) for a in range(3)]
        )
    np.testing.assert_allclose(model["gaussians.means"], means, atol=1e-3)
    np.testing.assert_allclose(model["gaussians.covariances"], covariances, atol=1e-3)
    sizes = np.array([len(rows) for rows in clients])
    np.testing.assert_allclose(model["tau"], sizes[:, None] * pi, atol=1e-2)


def test_queries_go_where_their_density_is_largest(finished):
    model, task = finished.model(), task_for(tiny(finished.directory, **OPTIONS))
    encoder = gaussian_model_of(task)
    h = encoder.features(task.test_examples, torch.arange(len(task.dataset.test.labels))).numpy()
    z = (h - model["projection.center"]) @ model["projection.axes"].T
    densities = np.array(
        [
            multivariate_normal(m, c).pdf(z)
            for m, c in zip(model["gaussians.means"], model["gaussians.covariances"], strict=True)
        ]
    ).T
    chosen = (densities @ model["tau"].T).argmax(axis=1)
    own = task.dataset.test_groups
    assert finished.summary["routing-accuracy"] == pytest.approx((chosen == own).mean())
    assert np.array(finished.rounds[-1]["routing-confusion"]).sum(axis=0).tolist() == (
        np.bincount(chosen, minlength=4).tolist()
    )


def test_a_run_reports_what_the_others_that_route_do(finished):
    last, summary = finished.rounds[-1], finished.summary
    for name in ("system-accuracy", "average-accuracy", "routing-accuracy", "vote-accuracy"):
        assert 0 < summary[name] == last[name] <= 1
    assert 0.5 <= last["purity"] <= 1
    assert 1 <= last["effective-components"] <= 3
    for row in finished.clients:
        assert len(row["tau"]) == 2
        assert len(row["mass"]) == 3
        for shares in (row["tau"], row["mass"]):
            assert sum(shares) == pytest.approx(row["examples"], rel=1e-6)


def test_moments_travel_in_place_of_features(tmp_path):
    """The survey's are sent once in a run; pi never leaves, nor do features."""
    sent = {}

    def listen(partition, message, answer):
        reply = answer()
        kind, number = message.metadata.message_type, message.content["config"].get("round")
        sizes = {name: len(wire.unpack(r)) for name, r in reply.content.array_records.items()}
        down = len(wire.unpack(message.content["arrays"]))
        sent.setdefault(kind, set()).add((number, down, tuple(sizes.items())))
        return reply

    reader = run_spoilt(tmp_path / "run", listen, **OPTIONS)
    ((number, down, reply),) = sent["train.e_step"]
    assert (number, down, dict(reply)) == (1, 0, {"arrays": (8 + 1) ** 2})
    size = task_for(tiny(tmp_path / "run", **OPTIONS)).slicer.size
    shared = 3 * size + 8 + 4 * 8 + 2 * 4 + 2 * 4 * 4
    of_reply = {"arrays": 3 * size, "moments": 2 * SIDE**2, "mass": 3, "diagnostics": 5}
    assert {(n, d) for n, d, _ in sent["train"]} == {(i, shared) for i in (1, 2, 3)}
    assert all(dict(each) == of_reply for _, _, each in sent["train"])
    assert not any("pi" in name.split(".") for name in reader.model())


def test_classifiers_are_averaged_by_what_they_are_responsible_for(tmp_path):
    """Of each classifier's replies, with weights N_ib (NumPy)."""
    replies = {}

    def listen(partition, message, answer):
        reply = answer()
        if message.metadata.message_type == wire.TRAIN:
            records = reply.content.array_records
            replies[partition] = wire.unpack(records["arrays"]), wire.unpack(records["mass"])
        return reply

    reader = run_spoilt(tmp_path / "run", listen, **{**OPTIONS, "num_server_rounds": 1})
    model, task = reader.model(), task_for(tiny(tmp_path / "run", **OPTIONS))
    stacks = np.array([replies[i][0].reshape(3, -1) for i in range(4)], dtype=float)
    masses = np.array([replies[i][1] for i in range(4)], dtype=float)
    for b in range(3):
        expected = masses[:, b] @ stacks[:, b] / masses[:, b].sum()
        layout = task.slicer.layout(1.0)
        entry = next(each for each in layout.entries if each.name == "classifier.bias")
        found = model[f"models.{b}.classifier.bias"]
        own = expected[entry.offset : entry.offset + entry.size]
        np.testing.assert_allclose(found, own, rtol=1e-6, atol=1e-8)


def without_scatter(flat):
    tables = flat.reshape(2, SIDE, SIDE)
    tables[:, 1:, 1:] = 0
    return tables.ravel()


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (MOMENTS, lambda flat: flat * np.nan, "non-finite values"),
        (MOMENTS, lambda flat: flat * 1.01, "is negative or does not sum to"),
        (MOMENTS, without_scatter, "not positive semi-definite"),
        (MOMENTS, lambda flat: flat[:1], r"shape (1,) instead of (50,)"),
        (MASS, lambda mass: mass - [2 * mass[0], -2 * mass[0], 0], "mass [-"),
        (MASS, lambda mass: mass * 1.01, "is negative or does not sum to"),
    ],
    ids=["NaN", "another sum", "no scatter", "another shape", "negative", "another mass"],
)
def test_a_client_whose_statistics_are_wrong_is_left_out(name, change, reason, tmp_path):
    options = {**OPTIONS, "num_server_rounds": 1}
    spoil = spoiling(AWAY, wire.TRAIN, name, change)
    reader = run_spoilt(tmp_path / "run", spoil, **options)
    (row,) = reader.rounds
    assert row["replies"] == 3
    assert [each["partition"] for each in row["rejected"]] == [AWAY]
    assert reason in row["rejected"][0]["reason"]
    assert AWAY not in {row["partition"] for row in reader.clients}
    assert reader.summary["status"] == "completed"


def test_a_survey_that_is_wrong_is_left_out_of_the_axes_alone(finished, tmp_path):
    spoil = spoiling(AWAY, wire.E_STEP, "arrays", lambda flat: -flat)
    reader = run_spoilt(tmp_path / "run", spoil, **OPTIONS)
    assert [len(row["rejected"]) for row in reader.rounds] == [1, 0, 0]
    assert [row["replies"] for row in reader.rounds] == [4, 4, 4]
    assert model_bytes(reader) != model_bytes(finished)


def test_a_survey_without_answers_is_made_again_in_the_next_round(tmp_path, caplog):
    def deaf(partition, message, answer):
        kind, number = message.metadata.message_type, message.content["config"].get("round")
        return None if (kind, number) == (wire.E_STEP, 1) else answer()

    reader = run_spoilt(tmp_path / "run", deaf, **OPTIONS)
    assert [len(row["rejected"]) for row in reader.rounds] == [4, 0, 0]
    assert [row["replies"] for row in reader.rounds] == [4, 4, 4]
    model = reader.model()
    assert model["projection.axes"].any()
    first, second = model["gaussians.means"]
    assert not np.allclose(first, second)  # one point in place of all would make them one for good
    assert caplog.text.count("Gaussians stay as they are") == 1


def test_a_round_without_axes_says_nothing_of_the_gaussians(tmp_path):
    """All features are one point then: clients' private weights stay level over Gaussians."""

    def deaf(partition, message, answer):
        return None if message.metadata.message_type == wire.E_STEP else answer()

    reader = run_spoilt(tmp_path / "run", deaf, **{**OPTIONS, "num_server_rounds": 1})
    sizes = {row["partition"]: row["examples"] for row in reader.clients}
    for row in reader.clients:
        half = sizes[row["partition"]] / 2
        assert row["tau"] == pytest.approx([half, half], rel=1e-6)


def test_a_classifier_that_no_client_uses_keeps_every_bit(tmp_path):
    unused = spoiling(None, wire.TRAIN, MASS, lambda mass: [mass[0] + mass[1], 0, mass[2]])
    reader = run_spoilt(tmp_path / "run", unused, **{**OPTIONS, "num_server_rounds": 1})
    task = task_for(tiny(tmp_path / "run", **OPTIONS))
    model = gaussian_model_of(task)
    before, after = model.tensors(model.initial), reader.model()
    for name in (name for name in before if name.startswith("models.")):
        assert (before[name].tobytes() == after[name].tobytes()) == name.startswith("models.1.")


def masses_alone(flat):
    tables = np.zeros((2, SIDE, SIDE))
    tables[:, 0, 0] = flat.reshape(tables.shape)[:, 0, 0]
    return tables.ravel()


def test_a_covariance_that_epsilon_does_not_repair_stays_and_is_named(tmp_path, caplog):
    """Images without variance give features without any."""
    flat = spoiling(None, wire.TRAIN, MOMENTS, masses_alone)
    repaired = run_spoilt(tmp_path / "repaired", flat, **OPTIONS).model()
    assert "stays as it was" not in caplog.text
    options = {**OPTIONS, "fedgmm__epsilon": 1e-60}
    reader = run_spoilt(tmp_path / "run", flat, **options)
    assert reader.summary["status"] == "completed"
    assert "Gaussian 0 is not positive definite with fedgmm.epsilon = 1e-60" in caplog.text
    kept = np.broadcast_to(np.eye(SIDE - 1), (2, SIDE - 1, SIDE - 1))
    np.testing.assert_array_equal(reader.model()["gaussians.covariances"], kept)
    np.testing.assert_allclose(repaired["gaussians.covariances"], 0.1 * kept, rtol=1e-6)


def too_alike(flat):
    """Two features of variance 1e10, alike by more than wholly, within what rounding could do."""
    tables = masses_alone(flat).reshape(2, SIDE, SIDE)
    masses = tables[:, 0, 0]
    tables[:, 1, 1] = tables[:, 2, 2] = 1e10 * masses
    tables[:, 1, 2] = tables[:, 2, 1] = 1.00001e10 * masses
    return tables.ravel()


def test_moments_of_one_client_cannot_end_the_run(tmp_path, caplog):
    spoil = spoiling(AWAY, wire.TRAIN, MOMENTS, too_alike)
    reader = run_spoilt(tmp_path / "run", spoil, **OPTIONS)
    assert [row["replies"] for row in reader.rounds] == [4, 4, 4]
    assert "not positive definite" in caplog.text
    assert all(np.isfinite(values).all() for values in reader.model().values())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"fedgmm__dimensions": 9}, r"fedgmm.dimensions = 9: routing.embedding = 8 features"),
        ({"fedgmm__gaussians": 0}, r"fedgmm.gaussians.*at least 1"),
        ({"fedgmm__epsilon": 0.0}, r"fedgmm.epsilon"),
        ({"routing__encoder": "lenet"}, r"routing.encoder.*lenet"),
        ({"partition": "iid"}, r"fedgmm must know whose each test example is"),
    ],
)
def test_options_without_sense_are_refused(options, match, tmp_path):
    with pytest.raises(FedhetError, match=match):
        run(tmp_path / "run", **{**OPTIONS, **options})
    assert not (tmp_path / "run").exists()


def test_log_likelihoods_are_those_of_the_labels():
    logits = torch.tensor([[[0.0, 0.0], [np.log(3.0), 0.0]]])  # one example, two classifiers
    found = log_likelihoods(logits, torch.tensor([1]))
    assert found.exp().tolist() == [pytest.approx([0.5, 0.25])]


def test_the_commands_that_others_who_route_have(finished, tmp_path, fedhet):
    dataset = task_for(tiny(finished.directory, **OPTIONS)).dataset
    PIL.Image.fromarray(np.array(dataset.test.inputs[0])).save(tmp_path / "query.png")
    status, out, err = fedhet("route", finished.directory, tmp_path / "query.png")
    assert (status, err) == (0, "")
    assert "P(component)" in out
    status, _, err = fedhet("evaluate", finished.directory)
    assert status == 2
    assert "use fedhet route" in err
    options = "strategy=fedgmm partition=dual num-clients=4"
    status, out, err = fedhet("run", "--dry-run", "--set", options)
    assert (status, err) == (0, "")
    assert "mixing weights" in out
