"""New images for a trained federation: the server routes each, the chosen client predicts it."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedhet_app import checkpoint, wire
from fedhet_app.config import Config
from fedhet_app.config_checks import ROUTING_METHODS
from fedhet_app.data.images import resize
from fedhet_app.data.shifts import to_colour
from fedhet_app.errors import FedhetError, one_line
from fedhet_app.gaussian_model import routing_model_of
from fedhet_app.results import RunReader
from fedhet_app.task import Task, task_for
from strategies.client_states import ClientStates
from strategies.federation import who_is_here
from strategies.routed import QueryRouter
from strategies.tau import table_of

ANSWERS = "answers.jsonl"
_GREY_OR_COLOUR = ("1", "L", "P", "RGB")


@dataclass(frozen=True, kw_only=True)
class RoutedAnswer:
    """What became of one image.

    Attributes:
        image: Its file.
        client: The client that the server chose.
        probability: P(client | image) by the density ratios and the clients' shares.
        answered_by: The client that answered: another one where the chosen is away.
        components: P(component | image) at the client that answered, one for each.
        label: The predicted class.
        class_name: Its name, where the data set has names.
        confidence: The predicted class's probability.
    """

    image: str
    client: int
    probability: float
    answered_by: int
    components: list[float]
    label: int
    class_name: str
    confidence: float


def check_routes(config: Config) -> None:
    """Refuse a run whose server cannot choose a client.

    Raises:
        FedhetError: The method does not route.
    """
    if not config.routes:
        remedy = f"does not route queries to clients; {' and '.join(ROUTING_METHODS)} do"
        raise FedhetError("strategy", config.strategy, remedy)


def answer(grid: Grid, config: Config, files: Iterable[Path]) -> list[RoutedAnswer]:
    """Answer images by the clients of a run.

    Args:
        grid: Where the nodes are.
        config: The run's, with its directory as ``results-dir``.
        files: Image files.

    Returns:
        One answer for each image, in their order.

    Raises:
        FedhetError: A method that does not route, a run that has no checkpoint or did not end, an
            image that does not open or has another size, no nodes, or none that answers.
    """
    check_routes(config)
    directory = Path(config.results_dir)
    status = RunReader(directory).summary["status"]
    if status != "completed":
        raise FedhetError("run directory", str(directory), f"is of a run that ended as {status!r}")
    paths = list(files)
    task = task_for(config)
    shape = task.dataset.test.inputs.shape[1:]
    images = load_images(paths, shape, config)
    profiles, _ = who_is_here(grid, config, leave_out=True)
    if not profiles:
        raise FedhetError("node-timeout", config.node_timeout, "no node came; start the nodes")
    data = {"dataset": task.dataset.fingerprint}
    if not config.clients_own:  # those that are away cannot say how much they hold
        data["partition"] = task.partition.fingerprint
    state = checkpoint.load(directory, config, data)
    vector, tau = state.arrays["vector"], table_of(state, config)
    nodes = {profile.partition: profile.node_id for profile in profiles}
    states = ClientStates(directory, config.num_clients, state)
    router = QueryRouter(task, nodes, lambda partition: states.note(partition, state))
    examples, rows = task.queried(None, images)
    preferred = router.log_weights(vector, tau, examples, rows)
    answers = router.ask(grid, preferred, lambda at: {"images": images[at]}, wire.pack(vector))
    if len(answers.away) == config.num_clients:
        remedy = "none of them answered; the warnings above say why of each"
        raise FedhetError("clients", len(answers.away), remedy)
    probabilities = torch.softmax(torch.from_numpy(preferred), dim=1).numpy()
    posterior = _component_posterior(task, vector, tau, images)
    names = task.dataset.class_names
    said = answers.of(answers.by)
    results = []
    for i, path in enumerate(paths):
        client, by = int(preferred[i].argmax()), int(answers.by[i])
        label = int(said[i].argmax())
        results.append(
            RoutedAnswer(
                image=str(path),
                client=client,
                probability=float(probabilities[i, client]),
                answered_by=by,
                components=posterior[i, by].tolist(),
                label=label,
                class_name=names[label] if names else "",
                confidence=float(said[i].max()),
            )
        )
    return results


def write(directory: Path, answers: Iterable[RoutedAnswer]) -> Path:
    """Append answers to a run directory's ``answers.jsonl`` and return its path."""
    path = directory / ANSWERS
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(each)) + "\n" for each in answers)
    return path


def image_files(text: str) -> list[Path]:
    """Return the files that a comma string names, folders standing for what is in them.

    Raises:
        FedhetError: A path is not absolute, or nothing is there.
    """
    found: list[Path] = []
    for part in text.split(","):
        path = Path(part.strip())
        if not path.is_absolute():
            remedy = "must be absolute paths: Flower runs the app in a folder of its own"
            raise FedhetError("queries", text, remedy)
        found += sorted(path.iterdir()) if path.is_dir() else [path]
    return found


def load_images(paths: list[Path], shape: tuple[int, ...], config: Config) -> NDArray[np.uint8]:
    """Return images, uint8, shape ``(n, H, W, C)``.

    Args:
        paths: Image files, grey or colour.
        shape: (H, W, C) of the run's data set.
        config: The run's; images are resized and coloured as it did with its own.

    Raises:
        FedhetError: No file, one that is no image of 8 bits, or an image of another size.
    """
    if not paths:
        raise FedhetError("queries", "", "name at least one image")
    height, width, channels = shape
    images = np.empty((len(paths), *shape), dtype=np.uint8)
    for i, path in enumerate(paths):
        try:
            with PIL.Image.open(path) as image:
                image.load()
        except Exception as error:  # PIL's decoders raise errors of many classes
            remedy = f"is no image that opens ({one_line(error)}); name PNG or JPEG files"
            raise FedhetError("image", str(path), remedy) from error
        if image.mode not in _GREY_OR_COLOUR:
            remedy = f"has mode {image.mode}; convert it to grey or RGB of 8 bits"
            raise FedhetError("image", str(path), remedy)
        plain = image.convert("L" if channels == 1 else "RGB")
        plain = resize(plain, height) if config.image_size else plain
        pixels = np.array(plain).reshape(*plain.size[::-1], channels)
        if config.partition == "dual":
            pixels = to_colour(pixels[None])[0]
        if pixels.shape != shape:
            size = f"{image.size[0]}x{image.size[1]}"
            remedy = f"is {size}, and the model takes {width}x{height}; resize it"
            raise FedhetError("image", str(path), remedy)
        images[i] = pixels
    return images


def _component_posterior(
    task: Task, vector: NDArray[np.float32], tau: NDArray[np.float64], images: NDArray[np.uint8]
) -> NDArray[np.float64]:
    """Return P_i(c|x) of every client, shape ``(n, m, C)``; tau has the mixing weights in it."""
    model = routing_model_of(task)
    model.load(vector)
    scores = model.outputs(*task.queried(None, images), predict=False).scores
    logits = scores.double() + torch.from_numpy(np.log(np.maximum(tau, 1e-8))).to(scores.device)
    posterior: NDArray[np.float64] = logits.softmax(dim=2).cpu().numpy()
    return posterior
