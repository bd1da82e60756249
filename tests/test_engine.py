import os
import sys
import time

import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from ray import cloudpickle
from running import model_bytes, outcome, run, tiny

from fedhet_app import engine
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader

SOME = {"strategy": "has-fl", "has_fl__warmup": 0, "has_fl__adapt_every": 2, "evaluate_every": 1}


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "has-fl", "fjord", "random-budget"])
def test_the_same_config_gives_the_same_bits(strategy, tmp_path):
    options = {**SOME, "strategy": strategy}
    one, two = run(tmp_path / "one", **options), run(tmp_path / "two", **options)
    assert outcome(one) == outcome(two)


def test_another_seed_gives_other_bits(tmp_path):
    one, two = run(tmp_path / "one", seed=1), run(tmp_path / "two", seed=2)
    assert model_bytes(one) != model_bytes(two)


def test_ray_gives_the_bits_of_the_process(tmp_path):
    options = {**SOME, "norm": "bn"}
    inline = run(tmp_path / "inline", **options)
    engine.run(tiny(tmp_path / "ray", **options), engine="ray")
    assert outcome(RunReader(tmp_path / "ray")) == outcome(inline)


def test_a_client_that_does_not_fit_on_the_machine_is_refused(tmp_path):
    config = tiny(tmp_path / "run", client_cpus=4096)
    with pytest.raises(FedhetError, match="no room for a client that takes"):
        engine.run(config, engine="ray")
    assert not (tmp_path / "run").exists()


def echo_or_fail_app():
    app = ClientApp()

    @app.query("echo")
    def echo(message, context):
        return Message(message.content, reply_to=message)

    @app.train()
    def train(message, context):
        raise OSError("disk full")

    return app


def sent(grid, kind, nodes):
    return [grid.create_message(RecordDict(), kind, node, "") for node in nodes]


def test_the_process_grid_pushes_and_pulls_each_reply_once():
    grid = engine.InlineGrid({}, engine.virtual_nodes(3), echo_or_fail_app)
    nodes = list(grid.get_node_ids())
    assert len(set(nodes)) == 3
    ids = list(grid.push_messages(sent(grid, "query.echo", nodes)))
    assert len(set(ids)) == 3
    (last,) = grid.pull_messages(ids[2:])
    assert last.metadata.src_node_id == nodes[2]
    assert last.metadata.reply_to_message_id == ids[2]
    assert [reply.metadata.reply_to_message_id for reply in grid.pull_messages(ids)] == ids[:2]
    assert list(grid.pull_messages(ids)) == []


def test_what_a_client_raises_comes_back_as_an_error():
    grid = engine.InlineGrid({}, engine.virtual_nodes(2), echo_or_fail_app)
    replies = list(grid.send_and_receive(sent(grid, "train", grid.get_node_ids())))
    assert [reply.has_error() for reply in replies] == [True, True]
    assert replies[0].error.code == 2
    assert "disk full" in replies[0].error.reason


def app_of_many_ends():
    app = echo_or_fail_app()

    @app.query("die")
    def die(message, context):
        os._exit(1)

    @app.query("sleep")
    def sleep(message, context):
        time.sleep(3)
        return Message(message.content, reply_to=message)

    return app


@pytest.mark.slow
def test_ray_goes_on_after_a_client_that_raises_dies_or_is_late():
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)  # Ray's processes could not import it
    one = {"num_cpus": 1, "num_gpus": 0}
    grid = engine.RayGrid({}, engine.virtual_nodes(3), one, app_of_many_ends)
    nodes = list(grid.get_node_ids())
    try:
        (failed,) = grid.send_and_receive(sent(grid, "train", nodes[:1]))
        assert "disk full" in failed.error.reason
        dying = sent(grid, "query.die", nodes[:1]) + sent(grid, "query.echo", nodes[1:])
        replies = {each.metadata.src_node_id: each for each in grid.send_and_receive(dying)}
        assert "died" in replies[nodes[0]].error.reason
        assert not any(replies[node].has_error() for node in nodes[1:])
        late = sent(grid, "query.sleep", nodes[:1])
        assert list(grid.send_and_receive(late, timeout=0.5)) == []
        every = sent(grid, "query.echo", nodes)
        replies = list(grid.send_and_receive(every))
        asked = {message.metadata.message_id for message in every}
        assert {reply.metadata.reply_to_message_id for reply in replies} == asked
        assert not any(reply.has_error() for reply in replies)
    finally:
        grid.close()
        cloudpickle.unregister_pickle_by_value(here)


def test_node_ids_are_new_in_every_run():
    grids = [engine.InlineGrid({}, engine.virtual_nodes(4)) for _ in range(2)]
    assert set(grids[0].get_node_ids()).isdisjoint(grids[1].get_node_ids())
