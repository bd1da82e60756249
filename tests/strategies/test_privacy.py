"""Flower's differential privacy around our strategies: what arrives, the noise, what is refused."""

from itertools import product

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, Strategy
from running import model_bytes, run, run_spoilt, tiny

from fedhet_app import engine, wire
from fedhet_app.config import DEFAULTS, STRATEGY_NAMES, parse
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader, load_tensors
from fedhet_app.task import Task

CENTRAL = ("client-fixed", "server-fixed")
OPTIONS = {"partition": "iid", "num_clients": 4, "num_server_rounds": 1, "fraction_train": 1.0}
NORM, HUGE, BAD = 0.25, 1e9, 2


def private(mode, **options):
    keys = {"privacy__mode": mode, "privacy__clipping_norm": NORM, **options}
    return {**OPTIONS, **keys}


def vectors(directory, options, spoil=None):
    """What every client was sent and what the server got, by round and client, and the reader."""
    sent, came = {}, {}

    def listen(partition, message, answer):
        reply = answer() if spoil is None else spoil(partition, message, answer)
        number = message.content.config_records["config"]["round"]
        sent[number] = wire.unpack(message.content["arrays"]).astype(float)
        if reply is not None and reply.has_content() and reply.content:
            vector = reply.content["arrays"]["vector"].numpy()
            came[number, partition] = vector.astype(float)
        return reply

    reader = run_spoilt(directory, listen, **options)
    return sent, came, reader


def final(reader):
    arrays, _ = load_tensors(reader.directory / "checkpoint" / "state.safetensors")
    return arrays["vector"].astype(float)


def clipped_mean(start, came, norm):
    """By NumPy: the plain mean of updates that are shortened to a norm, added to the start."""
    updates = [vector - start for vector in came]
    lengths = [np.sqrt((update**2).sum()) for update in updates]
    shortened = [u * min(1, norm / n) for u, n in zip(updates, lengths, strict=True)]
    return start + np.mean(shortened, axis=0)


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox"])
@pytest.mark.parametrize("mode", CENTRAL)
def test_without_noise_the_model_is_the_mean_of_clipped_updates(mode, strategy, tmp_path):
    options = private(mode, privacy__noise_multiplier=0.0, strategy=strategy)
    sent, came, reader = vectors(tmp_path / "run", options)
    lengths = [np.linalg.norm(vector - sent[1]) for vector in came.values()]
    if mode.startswith("client"):
        np.testing.assert_allclose(lengths, NORM, rtol=1e-3)
    else:
        assert min(lengths) > NORM
    expected = clipped_mean(sent[1], came.values(), NORM)
    np.testing.assert_allclose(final(reader), expected, atol=1e-6)
    (row,) = reader.rounds
    assert (row["noise-deviation"], row["replies"]) == (0.0, 4)
    assert row["largest-update-norm"] == pytest.approx(max(lengths))


@pytest.mark.parametrize("mode", CENTRAL)
def test_a_huge_norm_and_no_noise_are_plain_averaging(mode, tmp_path):
    """Up to rounding: Flower adds the update to what was sent anew, in float32."""
    noiseless = {"privacy__clipping_norm": HUGE, "privacy__noise_multiplier": 0.0}
    three = {"num_server_rounds": 3, "evaluate_every": 1}
    one = run(tmp_path / "private", **{**private(mode, **noiseless), **three})
    two = run(tmp_path / "plain", **{**OPTIONS, **three})
    np.testing.assert_allclose(final(one), final(two), atol=2e-6)
    assert [row["accuracy"] for row in one.rounds] == pytest.approx(
        [row["accuracy"] for row in two.rounds], abs=0.01
    )


@pytest.mark.parametrize("mode", CENTRAL)
def test_the_noise_has_the_deviation_of_flowers_formula(mode, tmp_path):
    multiplier = 0.3
    options = private(mode, privacy__noise_multiplier=multiplier)
    sent, came, reader = vectors(tmp_path / "run", options)
    noise = final(reader) - clipped_mean(sent[1], came.values(), NORM)
    expected, (row,) = multiplier * NORM / 4, reader.rounds
    assert row["noise-deviation"] == pytest.approx(expected)
    assert noise.size > 10_000
    assert noise.std() == pytest.approx(expected, rel=0.03)
    assert abs(noise.mean()) < 5 * expected / np.sqrt(noise.size)


def test_what_is_measured_and_saved_is_the_model_with_noise(tmp_path):
    """The clients of the next round start from what the run would leave behind."""
    options = private("server-fixed", num_server_rounds=2)
    sent, _, reader = vectors(tmp_path / "run", options)
    one, two = sent[1], sent[2]
    assert (two - one).std() == pytest.approx(1.0 * NORM / 4, rel=0.1)
    model = np.concatenate([array.ravel() for array in reader.model().values()])
    assert np.sort(model).tolist() == np.sort(final(reader)).tolist()


def test_noise_is_not_drawn_from_the_runs_seed(tmp_path):
    options = private("server-fixed")
    one, two = (run(tmp_path / name, **options) for name in "ab")
    assert model_bytes(one) != model_bytes(two)


def test_local_noise_is_in_what_leaves_the_client(tmp_path):
    epsilon, delta = 0.8, 1e-4
    options = private("local", privacy__epsilon=epsilon, privacy__delta=delta)
    sent, came, reader = vectors(tmp_path / "run", options)
    deviation = 2 * NORM * np.sqrt(2 * np.log(1.25 / delta)) / epsilon
    updates = [vector - sent[1] for vector in came.values()]
    for update in updates:
        assert update.std() == pytest.approx(deviation, rel=0.03)
    assert np.corrcoef(updates[0], updates[1])[0, 1] < 0.05
    np.testing.assert_allclose(final(reader), np.mean(list(came.values()), axis=0), atol=1e-4)


def test_local_clipping_without_much_noise(tmp_path):
    options = private("local", privacy__epsilon=1e9)
    sent, came, _ = vectors(tmp_path / "run", options)
    lengths = [np.linalg.norm(vector - sent[1]) for vector in came.values()]
    np.testing.assert_allclose(lengths, NORM, rtol=1e-3)


@pytest.mark.parametrize(("epsilon", "odd"), [(0.99, False), (1.0, True)])
def test_noise_beyond_its_proof_is_warned_of(epsilon, odd, tmp_path, caplog):
    run(tmp_path / "run", **private("local", privacy__epsilon=epsilon))
    assert ("privacy.epsilon = 1: the formula of the noise is proven below" in caplog.text) == odd


def test_flowers_adaptive_clipping_is_still_what_it_is_refused_for():
    """All updates are longer than the norm, which should rise; it falls, and the noise with it."""
    start = np.zeros(20_000, np.float32)

    class Mean(Strategy):
        def aggregate_train(self, server_round, replies):
            return ArrayRecord({"vector": Array(start)}), None

        def configure_train(self, server_round, arrays, config, grid):
            return []

        configure_evaluate = aggregate_evaluate = summary = None

    wrapper = DifferentialPrivacyServerSideAdaptiveClipping(
        Mean(), noise_multiplier=0.01, num_sampled_clients=4, initial_clipping_norm=1.0
    )
    record = ArrayRecord({"vector": Array(start)})
    grid = engine.InlineGrid({}, [{}])  # gives this process the identity messages need
    (node,) = grid.get_node_ids()
    request = grid.create_message(RecordDict(), wire.TRAIN, node, "")
    wrapper.configure_train(1, record, None, None)
    far = ArrayRecord({"vector": Array(start + np.float32(1))})
    replies = [Message(RecordDict({"arrays": far}), reply_to=request) for _ in range(4)]
    after, _ = wrapper.aggregate_train(1, replies)
    assert wrapper.clipping_norm < 0.95
    expected = wrapper.noise_multiplier * wrapper.clipping_norm / 4
    assert after["vector"].numpy().std() == pytest.approx(expected, rel=0.03)


def broken(kind):
    def spoil(partition, message, answer):
        reply = answer()
        if partition != BAD:
            return reply
        sent = message.content["arrays"]["vector"].numpy()
        match kind:
            case "no reply":
                return None
            case "an error":
                return Message(Error(2, "boom"), reply_to=message)
            case "no records":
                return Message(RecordDict(), reply_to=message)
            case "one float less":
                vector = sent[:-1]
            case "not a number":
                vector = sent * np.float32(np.nan)
            case "what was sent":
                vector = sent
            case "unclipped":
                vector = sent + np.float32(1)
            case "beyond float32 squares":
                vector = np.full_like(sent, 3e38)
        arrays = ArrayRecord({"vector": Array(vector)})
        return Message(RecordDict({**reply.content, "arrays": arrays}), reply_to=message)

    return spoil


FAULTS = ("no reply", "an error", "no records", "one float less", "not a number", "what was sent")


@pytest.mark.parametrize(
    ("mode", "fault"),
    [
        *product(CENTRAL, [*FAULTS, "beyond float32 squares"]),
        ("client-fixed", "unclipped"),  # with server-fixed the server clips it
    ],
)
def test_a_bad_reply_is_dropped_and_the_noise_is_made_for_the_others(mode, fault, tmp_path):
    """Flower's wrapper alone skips the round for an error, and raises for most of these."""
    options = private(mode, privacy__noise_multiplier=0.0)
    sent, came, reader = vectors(tmp_path / "run", options, broken(fault))
    others = [vector for (_, partition), vector in came.items() if partition != BAD]
    assert len(others) == 3
    np.testing.assert_allclose(final(reader), clipped_mean(sent[1], others, NORM), atol=1e-6)
    (row,) = reader.rounds
    assert [each["partition"] for each in row["rejected"]] == [BAD]
    assert row["replies"] == 3
    noisy = private(mode, privacy__noise_multiplier=0.1)
    sent, came, reader = vectors(tmp_path / "noisy", noisy, broken(fault))
    others = [vector for (_, partition), vector in came.items() if partition != BAD]
    noise = final(reader) - clipped_mean(sent[1], others, NORM)
    assert noise.std() == pytest.approx(0.1 * NORM / 3, rel=0.03)
    assert reader.rounds[0]["noise-deviation"] == pytest.approx(0.1 * NORM / 3)


@pytest.mark.parametrize("mode", CENTRAL)
def test_too_few_replies_keep_the_model_and_add_no_noise(mode, tmp_path):
    options = private(mode, privacy__noise_multiplier=0.1, min_replies=4)
    reader = run_spoilt(tmp_path / "run", broken("no reply"), **options)
    task = Task(tiny(tmp_path, **options))
    assert final(reader).tolist() == task.initial_vector().tolist()
    (row,) = reader.rounds
    assert (row["replies"], row["train-loss"]) == (3, None)


def test_a_client_cannot_weigh_more_than_another(tmp_path):
    """Flower's noise is made for equal weights; a Dirichlet partition has clients of any size."""
    options = private("server-fixed", privacy__noise_multiplier=0.0, partition="dirichlet")
    sent, came, reader = vectors(tmp_path / "run", options)
    sizes = {row["examples"] for row in reader.clients}
    assert len(sizes) > 1
    expected = clipped_mean(sent[1], came.values(), NORM)
    np.testing.assert_allclose(final(reader), expected, atol=1e-6)


def test_a_run_without_privacy_sends_nothing_about_it(tmp_path):
    seen = []

    def listen(partition, message, answer):
        reply = answer()
        seen.append((set(message.content["config"]), set(reply.content["metrics"])))
        return reply

    reader = run_spoilt(tmp_path / "run", listen, **OPTIONS)
    metrics = {"round", "partition", "examples", "loss", "steps", "seconds"}
    assert seen == [({"round", "width"}, metrics)] * 4
    assert "noise-deviation" not in reader.rounds[0]


REASONS = {
    "has-fl": "trains slices.* set mode local",
    "heterofl": "trains slices",
    "scaffold": "control variates travel too",
    "fedavg-ft": "models of their own, which get no noise",
    "ditto": "models of their own",
    "ifca": "models of their own",
    "fedspm": "send more than a model",
    "fedgmm": "send more than a model",
}


SLICES = {"fedrolex", "fjord", "has-fl", "heterofl", "random-budget", "uniform"}
WHOLE = {"fedavg", "fedprox"}


@pytest.mark.parametrize("strategy", sorted(SLICES))
def test_local_privacy_clips_slices_of_any_width(strategy, tmp_path):
    """And hardly adds noise: the average is over those that trained a coordinate, as ever."""
    options = private("local", privacy__epsilon=1e9, strategy=strategy, has_fl__warmup=0)
    options |= {"capacity_tiers": "0.5,1.0", "capacity_probs": "0.5,0.5"}
    sent, came = {}, {}

    def listen(partition, message, answer):
        reply = answer()
        sent[partition] = wire.unpack(message.content["arrays"]).astype(float)
        came[partition] = reply.content["arrays"]["vector"].numpy().astype(float)
        return reply

    reader = run_spoilt(tmp_path / "run", listen, **options)
    assert len({len(vector) for vector in came.values()}) == (1 if strategy == "uniform" else 2)
    lengths = [np.linalg.norm(came[i] - sent[i]) for i in came]
    np.testing.assert_allclose(lengths, NORM, rtol=1e-3)
    assert (reader.rounds[0]["replies"], reader.summary["status"]) == (4, "completed")


@pytest.mark.parametrize(
    ("strategy", "mode"),
    [
        (strategy, mode)
        for strategy in sorted(set(STRATEGY_NAMES) - WHOLE)
        for mode in (*CENTRAL, "local")
        if not (strategy in SLICES and mode == "local")
    ],
)
def test_methods_that_it_does_not_fit_are_refused_with_the_reason(strategy, mode):
    values = {"strategy": strategy, "partition": "dual", "privacy.mode": mode}
    if strategy == "scaffold":
        values |= {"momentum": 0.0, "weight-decay": 0.0}
    reason = REASONS.get(strategy, "")
    with pytest.raises(FedhetError, match=f"{strategy}: .*{reason}.*; use fedavg or") as caught:
        parse(values)
    assert caught.value.key == "privacy.mode"


@pytest.mark.parametrize(
    ("values", "key", "text"),
    [
        ({"privacy.mode": "secure"}, "privacy.mode", "one of none, client-fixed"),
        ({"privacy.clipping-norm": 2.0}, "privacy.clipping-norm", "no effect with privacy.mode"),
        ({"privacy.mode": "local", "privacy.noise-multiplier": 2.0}, None, "no effect with privac"),
        ({"privacy.mode": "client-adaptive"}, "privacy.mode", "lowers the norm where too many"),
        ({"privacy.mode": "server-adaptive"}, "privacy.mode", "use client- or server-fixed"),
        ({"privacy.mode": "server-fixed", "privacy.epsilon": 2.0}, None, "no effect with privacy"),
        ({"privacy.mode": "local", "privacy.delta": 0.0}, "privacy.delta", r"in \(0, 1\)"),
        ({"privacy.mode": "local", "privacy.epsilon": 0.0}, "privacy.epsilon", "above 0"),
        ({"privacy.mode": "local", "privacy.clipping-norm": 0.0}, None, "above 0"),
        ({"privacy.mode": "local", "max-update-norm": 3.0}, "max-update-norm", "of its own; leave"),
    ],
)
def test_options_that_make_no_sense_are_refused(values, key, text):
    with pytest.raises(FedhetError, match=text) as caught:
        parse({"strategy": "fedavg", **values})
    assert key is None or caught.value.key == key


@pytest.mark.parametrize("mode", ["server-fixed", "local"])
def test_running_statistics_are_refused_before_anything_is_written(mode, tmp_path):
    with pytest.raises(FedhetError, match="running variances negative; set norm = gn") as caught:
        run(tmp_path / "run", **private(mode, norm="bn"))
    assert caught.value.key == "privacy.mode"
    assert not (tmp_path / "run").exists()


def test_the_default_is_none():
    assert DEFAULTS["privacy.mode"] == "none"


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*CENTRAL, "local"])
def test_every_mode_on_flowers_ray_backend(mode, tmp_path):
    """Client modifiers in other processes, what travels serialised."""
    quiet = {"privacy__epsilon": 1e9} if mode == "local" else {"privacy__noise_multiplier": 0.0}
    options = private(mode, **quiet, num_server_rounds=2)
    engine.run(tiny(tmp_path / "ray", **options), engine="ray")
    inline = run(tmp_path / "inline", **options)
    tolerance = 1e-6 if mode == "local" else 0.0
    np.testing.assert_allclose(final(RunReader(tmp_path / "ray")), final(inline), atol=tolerance)
