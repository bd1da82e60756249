"""New images for a finished run, by `fedhet route` and by a ServerApp that asks live nodes."""

import json
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from flwr.app import Context, Error, RecordDict
from own_folders import digits, nodes_of, write_images
from running import MIXTURE, MoodyGrid, SpoiltGrid, run, tiny

from fedhet_app import checkpoint, engine, queries, wire
from fedhet_app.config import parse
from fedhet_app.data.shifts import to_colour
from fedhet_app.errors import FedhetError
from fedhet_app.results import RunReader
from fedhet_app.sealed import load_sealed, save_sealed
from fedhet_app.server_app import app as server_app
from fedhet_app.task import task_for

OPTIONS = {**MIXTURE, "local_steps": 3, "routing__steps": 10}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "fedspm", **OPTIONS)


@pytest.fixture(scope="module")
def images(finished, tmp_path_factory):
    """A test image of each client as a file."""
    folder = tmp_path_factory.mktemp("images")
    dataset = task_for(tiny(finished.directory, **OPTIONS)).dataset
    for client in range(4):
        row = int(np.flatnonzero(dataset.test_groups == client)[0])
        PIL.Image.fromarray(np.array(dataset.test.inputs[row])).save(folder / f"{client}.png")
    return folder


def ask(directory, files, spoil=lambda partition, message, answer: answer()):
    config = tiny(directory, **OPTIONS, resume=True, queries=files)
    return answers_by(SpoiltGrid(config, spoil), config)


def answers_by(grid, config):
    directory = Path(config.results_dir)
    server_app(grid, Context(1, 1, {}, RecordDict(), config.flat()))
    lines = (directory / queries.ANSWERS).read_text().splitlines()
    (directory / queries.ANSWERS).unlink()
    return [json.loads(line) for line in lines]


def test_the_command_shows_client_components_and_prediction(finished, images, fedhet):
    files = sorted(images.iterdir())
    status, out, err = fedhet("route", finished.directory, *files)
    assert (status, err) == (0, "")
    assert out.count(".png") == 4
    assert "P(component)" in out


def test_an_image_is_answered_as_in_the_evaluation(finished, images):
    """The probabilities of the files are those of the same examples of the test set."""
    seen = {}

    def listen(partition, message, answer):
        reply = answer()
        if message.metadata.message_type == wire.PREDICT:
            seen[partition] = wire.unpack(reply.content["arrays"])
        return reply

    answers = ask(finished.directory, str(images), listen)
    for each in answers:
        table = seen[each["answered_by"]].reshape(-1, 10)
        assert each["confidence"] in table.max(axis=1).tolist()
        assert sum(each["components"]) == pytest.approx(1.0)
        assert each["answered_by"] == each["client"]
        assert 0.25 <= each["probability"] <= 1


def test_a_query_whose_client_is_away_goes_to_the_next_best(finished, images):
    first = ask(finished.directory, str(images))[0]

    def away(partition, message, answer):
        if partition == first["client"] and message.metadata.message_type == wire.PREDICT:
            return None
        return answer()

    again = ask(finished.directory, str(images), away)[0]
    assert again["client"] == first["client"]
    assert again["answered_by"] != first["client"]


@pytest.mark.parametrize(
    ("code", "said"), [(8, "has not said who it is: killed"), (2, "is left out: node = ")]
)
def test_queries_do_not_need_a_node_that_crashes_or_refuses(code, said, finished, images, caplog):
    more = {"resume": True, "queries": str(images), "node_timeout": 0.5}
    config = tiny(finished.directory, **OPTIONS, **more)
    answers = answers_by(MoodyGrid(config, 1000 * [Error(code, "killed")]), config)
    assert {each["client"] for each in answers} == {0, 1, 2, 3}
    assert {each["answered_by"] for each in answers} == {0, 2, 3}
    assert said in caplog.text


def test_images_are_routed_to_clients_that_hold_the_data(tmp_path):
    """And to those alone that are there: the run's data are nobody else's."""
    pixels, labels = digits()
    folders = [
        write_images(tmp_path / str(i), pixels[part], labels[part])
        for i, part in enumerate((slice(0, 80), slice(80, 160)))
    ]
    nodes = nodes_of(folders)
    own = {"partition": "own", "evaluate": "federated", "num_clients": 2, "node_timeout": 0.5}
    options = {**OPTIONS, **own}
    del options["dual__examples"]
    run(tmp_path / "run", nodes, **options)
    asked = {**options, "resume": True, "queries": str(folders[0] / "3")}
    config = tiny(tmp_path / "run", **asked)
    answers = answers_by(engine.InlineGrid(config.flat(), nodes), config)
    assert len(answers) == np.count_nonzero(labels[:80] == 3)
    assert all(each["answered_by"] == each["client"] for each in answers)
    alone = answers_by(engine.InlineGrid(config.flat(), nodes[1:]), config)
    assert [each["client"] for each in alone] == [each["client"] for each in answers]
    assert {each["answered_by"] for each in alone} == {1}


def nobody(partition, message, answer):
    return None if message.metadata.message_type == wire.PREDICT else answer()


def test_queries_that_nobody_answers_are_an_error(finished, images):
    with pytest.raises(FedhetError, match=r"clients = 4: none of them answered"):
        ask(finished.directory, str(images), nobody)


def test_what_nobody_answers_in_an_evaluation_is_wrong(tmp_path):
    config = tiny(tmp_path / "run", **OPTIONS)
    server_app(SpoiltGrid(config, nobody), Context(1, 1, {}, RecordDict(), config.flat()))
    summary = RunReader(tmp_path / "run").summary
    assert (summary["system-accuracy"], summary["average-accuracy"]) == (0.0, 0.0)
    assert summary["routing-accuracy"] > 0


def test_only_a_run_that_completed_answers(finished, images, tmp_path, fedhet):
    failed = tmp_path / "run"
    shutil.copytree(finished.directory, failed)
    summary = failed / "summary.json"
    summary.write_text(summary.read_text().replace("completed", "failed"))
    status, _, err = fedhet("route", failed, images / "0.png")
    assert (status, "ended as 'failed'" in err) == (2, True)
    summary.unlink()
    status, _, err = fedhet("route", failed, images / "0.png")
    assert (status, "has not finished" in err) == (2, True)


def test_a_table_of_another_shape_is_refused(finished, images, tmp_path, fedhet):
    spoilt = tmp_path / "run"
    shutil.copytree(finished.directory, spoilt)
    arrays, metadata = load_sealed(spoilt / checkpoint.FILE)
    arrays["tau"] = arrays["tau"][:3]
    save_sealed(spoilt / checkpoint.FILE, arrays, metadata)
    status, _, err = fedhet("route", spoilt, images / "0.png")
    assert (status, "tau has shape (3, 2), not (4, 2)" in err) == (2, True)


def test_a_grey_image_of_a_shifted_data_set_is_coloured_as_its_own(tmp_path):
    grey = np.random.default_rng(3).integers(0, 256, (28, 28), dtype=np.uint8)
    PIL.Image.fromarray(grey).save(tmp_path / "grey.png")
    (image,) = queries.load_images(
        [tmp_path / "grey.png"], (32, 32, 3), parse({"partition": "dual"})
    )
    np.testing.assert_array_equal(image, to_colour(grey[None, :, :, None])[0])


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda path: path.write_text("no image"), "is no image that opens"),
        (
            lambda path: PIL.Image.new("RGB", (9, 8)).save(path, "png"),
            "is 9x8, and the model takes 8x8",
        ),
        (lambda path: PIL.Image.new("I;16", (8, 8)).save(path, "png"), "has mode I;16; convert it"),
        (lambda path: None, "is no image that opens"),
    ],
    ids=["text", "size", "depth", "missing"],
)
def test_an_image_that_does_not_fit_is_refused(make, match, finished, tmp_path, fedhet):
    make(tmp_path / "query")
    status, _, err = fedhet("route", finished.directory, tmp_path / "query")
    assert status == 2
    assert match in err
    assert len(err.splitlines()) == 1


def test_a_run_that_cannot_route_is_refused(tmp_path, images, fedhet):
    run(tmp_path / "fedavg")
    status, _, err = fedhet("route", tmp_path / "fedavg", images / "0.png")
    assert status == 2
    assert "fedavg: does not route queries to clients" in err.replace("'", "")


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_mixture_has_no_model_to_measure_or_write(command, finished, tmp_path, fedhet):
    file = (tmp_path / "file",) if command == "export" else ()
    status, _, err = fedhet(command, finished.directory, *file)
    assert status == 2
    assert "use fedhet route" in err


def test_a_relative_path_is_refused_under_flower(finished):
    with pytest.raises(FedhetError, match=r"queries.*must be absolute paths"):
        ask(finished.directory, "images")
