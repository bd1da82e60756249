import json

import pytest
from running import interrupted, model_bytes, outcome, run, timeless

from fedhet_app import checkpoint
from fedhet_app.errors import FedhetError
from fedhet_app.results import MODEL, RunReader, RunWriter, load_tensors, round_observer

OPTIONS = {
    "num_server_rounds": 6,
    "evaluate_every": 1,
    "has_fl__warmup": 0,
    "has_fl__adapt_every": 2,
    "has_fl__normalise_every": 4,
    "random_budget__warmup": 0,
    "random_budget__adapt_every": 2,
    "has_fl__coverage": False,
}


@pytest.mark.parametrize("strategy", ["fedavg", "fjord", "random-budget", "has-fl"])
@pytest.mark.parametrize("at", [1, 4])
def test_a_resumed_run_ends_with_the_bits_of_an_unbroken_one(strategy, at, tmp_path):
    options = {**OPTIONS, "strategy": strategy, "norm": "bn"}
    whole = run(tmp_path / "whole", **options)
    stopped = interrupted(tmp_path / "halves", at, **options)
    assert not (stopped.directory / MODEL).exists()
    resumed = run(tmp_path / "halves", resume=True, **options)
    assert outcome(resumed) == outcome(whole)


def test_a_run_may_be_stopped_and_resumed_several_times(tmp_path):
    options = {**OPTIONS, "strategy": "has-fl"}
    whole = run(tmp_path / "whole", **options)
    interrupted(tmp_path / "parts", 2, **options)
    interrupted(tmp_path / "parts", 3, resume=True, **options)
    interrupted(tmp_path / "parts", 6, resume=True, **options)
    assert outcome(run(tmp_path / "parts", resume=True, **options)) == outcome(whole)


def test_the_checkpoint_is_of_the_last_whole_round(tmp_path):
    interrupted(tmp_path / "run", 4, **OPTIONS)
    _, metadata = load_tensors(tmp_path / "run" / checkpoint.FILE)
    assert '"round": 3' in metadata["state"]


def test_a_row_cut_off_by_a_crash_does_not_matter(tmp_path):
    whole = run(tmp_path / "whole", **OPTIONS)
    reader = interrupted(tmp_path / "run", 4, **OPTIONS)
    for name in ("rounds.jsonl", "clients.jsonl"):
        with (reader.directory / name).open("a") as file:
            file.write('{"round": 5, "acc')
    assert outcome(run(tmp_path / "run", resume=True, **OPTIONS)) == outcome(whole)


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    before = outcome(run(tmp_path / "run", **OPTIONS))
    assert outcome(run(tmp_path / "run", resume=True, **OPTIONS)) == before


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"lr": 0.01}, "lr"),
        ({"seed": 7}, "seed"),
        ({"strategy": "heterofl"}, "strategy"),
        ({"momentum": 0.5}, "momentum"),
        ({"num_server_rounds": 4}, "num-server-rounds"),
        ({"max_train_examples": 200}, "max-train-examples"),
    ],
)
def test_another_config_is_refused_by_its_key(change, key, tmp_path):
    reader = interrupted(tmp_path / "run", 4, **OPTIONS)
    rows = reader.rounds
    with pytest.raises(FedhetError, match=r"the run to resume has .*; resume with that") as caught:
        run(tmp_path / "run", resume=True, **{**OPTIONS, **change})
    assert caught.value.key == key
    assert reader.rounds == rows


def test_keys_that_touch_no_result_may_change(tmp_path):
    whole = run(tmp_path / "whole", **OPTIONS)
    interrupted(tmp_path / "run", 4, **OPTIONS)
    free = {"checkpoint_every": 1, "round_timeout": 99.0, "node_timeout": 9.0}
    assert outcome(run(tmp_path / "run", resume=True, **OPTIONS, **free)) == outcome(whole)


def test_more_rounds_continue_the_run(tmp_path):
    longer = {**OPTIONS, "num_server_rounds": 9}
    whole = run(tmp_path / "whole", **longer)
    run(tmp_path / "run", **OPTIONS)
    extended = run(tmp_path / "run", resume=True, **longer)
    assert model_bytes(extended) == model_bytes(whole)
    assert timeless(extended.summary) == timeless(whole.summary)


def test_more_rounds_are_another_run_under_a_cosine_schedule(tmp_path):
    cosine = {**OPTIONS, "lr_schedule": "cosine"}
    run(tmp_path / "run", **cosine)
    with pytest.raises(FedhetError, match="num-server-rounds = 9: the run to resume has 6"):
        run(tmp_path / "run", resume=True, **{**cosine, "num_server_rounds": 9})


def test_a_run_that_goes_on_is_not_resumed_beside_itself(tmp_path):
    reader = interrupted(tmp_path / "run", 2)
    writer = RunWriter(reader.directory, resume_at=1)
    before = reader.rounds
    with pytest.raises(FedhetError, match=r"results-dir = .*: a run is writing there; stop it, or"):
        run(tmp_path / "run", resume=True)
    assert reader.rounds == before
    writer.close()
    assert run(tmp_path / "run", resume=True).summary["status"] == "completed"


def test_there_must_be_a_run_with_a_checkpoint(tmp_path):
    with pytest.raises(FedhetError, match=r"holds no config.json: not a run"):
        run(tmp_path / "none", resume=True, **OPTIONS)
    assert not (tmp_path / "none").exists()
    reader = interrupted(tmp_path / "run", 2, **OPTIONS)
    (reader.directory / checkpoint.FILE).unlink()
    with pytest.raises(FedhetError, match="no checkpoint to resume from; start the run again"):
        run(tmp_path / "run", resume=True, **OPTIONS)


def test_a_damaged_checkpoint_is_one_clear_error(tmp_path):
    reader = interrupted(tmp_path / "run", 4, **OPTIONS)
    file = reader.directory / checkpoint.FILE
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(FedhetError, match=r"state.safetensors.*cannot be read"):
        run(tmp_path / "run", resume=True, **OPTIONS)


def test_checkpoints_are_written_while_the_run_goes_on(tmp_path):
    seen = {}

    def look(row):
        file = tmp_path / "run" / checkpoint.FILE
        if file.exists():
            seen[row["round"]] = load_tensors(file)[1]["state"]

    token = round_observer.set(look)
    try:
        run(tmp_path / "run", checkpoint_every=2, **OPTIONS)
    finally:
        round_observer.reset(token)
    assert list(seen) == [1, 2, 3, 4, 5, 6]
    assert '"round": 0' in seen[2]
    assert '"round": 2' in seen[3]
    assert '"round": 4' in seen[5]


@pytest.mark.parametrize("name", ["dataset", "partition"])
def test_other_data_is_not_resumed(name, tmp_path):
    options = {"num_server_rounds": 3}
    stopped = interrupted(tmp_path / "run", 2, **options)
    file = tmp_path / "run" / "config.json"
    content = json.loads(file.read_text())
    content["data"][name] = "0" * 64
    file.write_text(json.dumps(content))
    rows = stopped.rounds
    with pytest.raises(FedhetError, match=f"started with another {name}") as caught:
        run(tmp_path / "run", resume=True, **options)
    assert caught.value.key == name
    assert RunReader(tmp_path / "run").rounds == rows


def nodes_with(*capacities):
    count = len(capacities)
    return [
        {"partition-id": i, "num-partitions": count, "capacity": capacity}
        for i, capacity in enumerate(capacities)
    ]


def test_a_client_that_can_train_less_than_before_is_not_resumed(tmp_path):
    options = {**OPTIONS, "strategy": "heterofl", "num_clients": 3}
    before = nodes_with(0.5, 1.0, 1.0)
    whole = run(tmp_path / "whole", nodes=before, **options)
    interrupted(tmp_path / "run", 2, nodes=before, **options)
    with pytest.raises(FedhetError, match="partition 1 has trained up to 1 from") as caught:
        run(tmp_path / "run", resume=True, nodes=nodes_with(0.5, 0.5, 1.0), **options)
    assert (caught.value.key, caught.value.value) == ("capacity", 0.5)
    more = run(tmp_path / "run", resume=True, nodes=nodes_with(1.0, 1.0, 1.0), **options)
    assert outcome(more) == outcome(whole)


def test_a_run_from_before_an_option_existed_goes_on_with_its_default(tmp_path):
    whole = run(tmp_path / "whole", **OPTIONS)
    reader = interrupted(tmp_path / "run", 4, **OPTIONS)
    file = reader.directory / "config.json"
    content = json.loads(file.read_text())
    del content["config"]["vote-tie"]
    file.write_text(json.dumps(content))
    assert outcome(run(tmp_path / "run", resume=True, **OPTIONS)) == outcome(whole)
