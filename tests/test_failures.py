"""The benchmark of failing clients, at a small size."""

import json

import pytest
from flwr.app import Message, RecordDict
from running import tiny

from benchmarks import failures
from benchmarks.failures import RATE, FailingGrid, Job, table
from fedhet_app.results import RunReader


def test_a_fifth_of_the_training_fails_half_of_it_before_half_behind(tmp_path):
    config = tiny(tmp_path / "run", num_server_rounds=1)
    grid = FailingGrid(config.flat(), config.num_clients, RATE, seed=3)
    draws, asked, raised, lost = iter([0.05, 0.15, 0.25] * 200), 600, 0, 0

    class Fixed:
        def random(self):
            return next(draws)

    grid._rng = Fixed()
    grid._load = lambda: lambda message, context: Message(RecordDict(), reply_to=message)
    (node, *_) = grid.get_node_ids()
    for _ in range(asked):
        message = grid.create_message(RecordDict(), "train", node, "")
        replies = grid.send_and_receive([message])
        raised += sum(reply.has_error() for reply in replies)
        lost += not replies
    assert (raised, lost) == (200, 200)
    query = grid.create_message(RecordDict(), "query.predict", node, "")
    assert len(grid.send_and_receive([query])) == 1


def test_a_short_run_leaves_its_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(failures, "EARLY", 2)
    jobs = [Job("scaffold", 5, rate, tmp_path / f"rate{rate:g}") for rate in (0.0, RATE)]
    for job in jobs:
        job.run(rounds=3)
    text, _ = table(jobs, rounds=3)
    reader = RunReader(jobs[1].directory)
    rejected = [each for row in reader.rounds for each in row["rejected"]]
    assert rejected, "30 replies, a fifth of which fail"
    reasons = {each["reason"].partition(":")[0] for each in rejected}
    assert reasons <= {"error 2", "no reply within 3600 s"}
    assert f"{len(rejected)} of 30" in text
    assert set(json.loads((jobs[0].directory / failures.MEMORY).read_text())) == {"1", "2", "3"}
    means = [100 * sum(r["accuracy"] for r in RunReader(j.directory).rounds) / 3 for j in jobs]
    assert f"| {means[0]:.2f} | {means[1]:.2f} | {means[1] - means[0]:+.2f} |" in text


def test_a_run_that_did_not_complete_is_said(tmp_path):
    text, good = table([Job("fedavg", 1, rate, tmp_path / f"{rate}") for rate in (0.0, RATE)], 3)
    assert "not completed" in text
    assert not good


@pytest.mark.parametrize(("late", "good"), [(1.05, True), (1.2, False)])
def test_growth_is_judged(late, good, tmp_path, monkeypatch):
    numbers = {"accuracy": 90.0, "asked": 10, "failed": 2, "early": 100.0, "late": 100.0 * late}
    monkeypatch.setattr(Job, "numbers", lambda self, rounds: numbers)
    jobs = [Job("fedavg", 1, rate, tmp_path) for rate in (0.0, RATE)]
    assert table(jobs, 100)[1] is good
