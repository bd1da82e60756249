"""A plain PyTorch loop that does the local steps of a run, and nothing else.

    python benchmarks/bare_loop.py --workers 2 'dataset=digits norm=none batch-size=64'

Same examples, partition, cohorts, batches, network, learning rates and allocator setting as
`fedhet run` with these values; one torch thread per worker. Left out is what makes it federated:
no message but the list of clients, no average, no rows, no evaluation; every client starts from the
initial weights. What the app takes beyond this loop is its own cost. With one worker the loop runs
in this process, with more in as many forked ones; a round's clients go to them in one list each,
the largest first to the least loaded, and the round ends when the last worker is done.

Prints one JSON object: per round its seconds, local steps and clients.
"""

import argparse
import json
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from fedhet_app.config import parse
from fedhet_app.config_files import parse_pairs
from fedhet_app.models import initial_module
from fedhet_app.seeding import rng_for
from fedhet_app.task import Task


class Trainer:
    """Trains one client after the other.

    Args:
        task: Data, partition and network; making it keeps freed memory and sets torch's threads.
    """

    def __init__(self, task: Task) -> None:
        self.config, self.partition = task.config, task.partition
        train = task.dataset.train
        self.images = torch.tensor(train.inputs)
        self.labels = torch.tensor(train.labels)
        self.scale = torch.tensor(1.0 / task.dataset.std)
        self.shift = torch.tensor(-task.dataset.mean / task.dataset.std)
        model = initial_module(task.builder, task.spec, self.config.init, self.config.seed)
        self.model = model.to(memory_format=torch.channels_last)
        self.start = {name: value.clone() for name, value in self.model.state_dict().items()}

    def train(self, partition: int, server_round: int) -> int:
        """Train one client from the initial weights and return its number of steps."""
        config, model, steps = self.config, self.model, 0
        model.load_state_dict(self.start)
        model.train()
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=config.lr_at(server_round),
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            fused=True,
        )
        rng = rng_for(config.seed, "shuffle", partition, server_round)
        examples = self.partition.client(partition)
        for _ in range(config.local_epochs):
            order = torch.from_numpy(rng.permutation(examples))
            for rows in order.split(config.batch_size):  # type: ignore[no-untyped-call]
                inputs = self.images[rows].float().mul_(self.scale).add_(self.shift)
                loss = cross_entropy(model(inputs.permute(0, 3, 1, 2)), self.labels[rows])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                clip_grad_norm_(model.parameters(), config.clip_norm)
                optimizer.step()
                steps += 1
        return steps

    def cohort(self, server_round: int) -> list[int]:
        """Return the clients of a round, as the app draws them."""
        rng = rng_for(self.config.seed, "sample", server_round)
        size = self.config.cohort_size
        return sorted(rng.choice(self.config.num_clients, size=size, replace=False).tolist())

    def train_all(self, clients: list[int], server_round: int) -> int:
        """Train clients one after the other and return their number of steps."""
        return sum(self.train(client, server_round) for client in clients)


class Crew:
    """Forked processes that train, each with one connection to this one."""

    def __init__(self, trainer: Trainer, workers: int) -> None:
        self._sizes = trainer.partition.sizes
        self._connections: list[Connection] = []
        context = get_context("fork")
        for _ in range(workers):
            ours, theirs = context.Pipe()
            context.Process(target=_serve, args=(trainer, theirs), daemon=True).start()
            self._connections.append(ours)

    def train_all(self, clients: list[int], server_round: int) -> int:
        """Have clients trained, wait for the last and return their number of steps."""
        shares: list[list[int]] = [[] for _ in self._connections]
        load = np.zeros(len(shares), dtype=np.int64)
        for client in sorted(clients, key=lambda client: -self._sizes[client]):
            least = int(load.argmin())
            shares[least].append(client)
            load[least] += self._sizes[client]
        for connection, share in zip(self._connections, shares, strict=True):
            connection.send((share, server_round))
        return sum(connection.recv() for connection in self._connections)


def _serve(trainer: Trainer, connection: Connection) -> None:
    while True:
        connection.send(trainer.train_all(*connection.recv()))


def run(trainer: Trainer, workers: int) -> list[dict[str, Any]]:
    """Run all rounds and return a row for each."""
    train_all = (Crew(trainer, workers) if workers > 1 else trainer).train_all
    rows = []
    for number in range(1, trainer.config.num_server_rounds + 1):
        began = time.perf_counter()
        clients = trainer.cohort(number)
        steps = train_all(clients, number)
        seconds = time.perf_counter() - began
        rows.append({"seconds": seconds, "local-steps": steps, "clients": clients})
    return rows


def main() -> None:
    """Run the loop that the command line asks for."""
    parser = argparse.ArgumentParser(description="The local steps of a run in plain PyTorch.")
    parser.add_argument("pairs", help="run-config values, as fedhet run --set takes them")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    trainer = Trainer(Task(parse(parse_pairs(arguments.pairs))))
    print(json.dumps(run(trainer, arguments.workers)))


if __name__ == "__main__":
    main()
