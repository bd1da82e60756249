"""What the nodes say that they hold: checked against the run's division, and written down."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedhet_app.config import Config
from fedhet_app.data.dual import describe_dual
from fedhet_app.data.skew import describe, describe_tests
from fedhet_app.errors import FedhetError
from fedhet_app.own_task import server_task
from fedhet_app.task import Task, task_for
from strategies.federation import Federation, check_capacity

LOG = logging.getLogger("fedhet")


def task_of(config: Config, federation: Federation) -> Task:
    """Return the server's task, for the nodes that are there."""
    if config.clients_own:
        return server_task(config, [profile.examples for profile in federation.profiles])
    return task_for(config)


def check_declared(task: Task, federation: Federation) -> None:
    """Refuse nodes that hold other data than the run says, or data of different kinds.

    A node's number of examples is its weight in every average. Where the data are its own, there is
    nothing to compare it with.

    Raises:
        FedhetError: They do, or nobody has examples to measure on.
    """
    config, profiles = task.config, federation.profiles
    for profile, size in zip(profiles, task.partition.sizes, strict=True):
        if profile.examples != size:
            remedy = f"partition {profile.partition} has {size}; the node holds other data"
            raise FedhetError("examples", profile.examples, remedy)
        if profile.columns != profiles[0].columns:
            remedy = (
                f"the nodes of partitions {profiles[0].partition} and {profile.partition} have "
                "columns of other names, or in another order; give all the same"
            )
            raise FedhetError("data-path", profile.partition, remedy)
    if config.federated_evaluation and not config.clients_own:
        for profile in profiles:
            held_out = len(task.held_out(profile.partition))
            if profile.test_examples != held_out:
                remedy = f"partition {profile.partition} holds out {held_out}; the node others"
                raise FedhetError("test-examples", profile.test_examples, remedy)
    if config.federated_evaluation and not any(p.test_examples for p in profiles):
        remedy = "no client holds an example out to measure on; raise it, or add examples"
        raise FedhetError("test-fraction", config.test_fraction, remedy)


def as_begun(federation: Federation, begun: Mapping[str, Any]) -> Federation:
    """Return a resumed run's federation: with the capacities that the run began with.

    Args:
        federation: The nodes that are here.
        begun: The run's ``partition.json``.

    Raises:
        FedhetError: A node can train less than its client did.
    """
    caps = np.array(begun["capacities"])
    for profile, least in zip(federation.profiles, caps, strict=True):
        check_capacity(profile, least)
    return replace(federation, caps=caps)


def describe_shares(task: Task, federation: Federation) -> dict[str, Any]:
    """Return what ``partition.json`` says: who holds how much of what, as far as the server knows.

    The labels that clients hold themselves it does not know.
    """
    shares: dict[str, Any]
    if task.config.clients_own:
        partition = task.partition
        shares = {"fingerprint": partition.fingerprint, "sizes": partition.sizes.tolist()}
    else:
        shares = (
            describe(task.partition, task.histograms)
            | describe_tests(task.test_owners, task.dataset.test.labels, task.histograms.shape)
            | describe_dual(task.dataset)
        )
    if task.config.federated_evaluation:
        shares["test-sizes"] = [profile.test_examples for profile in federation.profiles]
    measured = {str(p.partition): p.tiers for p in federation.profiles if p.tiers}
    if measured:
        shares["measured-tiers"] = {
            client: [{"width": t.width, "ms": t.ms, "memory-mb": t.memory_mb} for t in tiers]
            for client, tiers in measured.items()
        }
    return shares | {"capacities": federation.caps.tolist()}


def say_what_was_measured(federation: Federation) -> None:
    """Log the capacities that nodes chose by measuring."""
    for profile in federation.profiles:
        if profile.tiers:
            tiers = ", ".join(
                f"{t.width:g}: {t.ms:.3g} ms and {t.memory_mb:.0f} MiB" for t in profile.tiers
            )
            LOG.info(
                "client %d has measured a step of each tier (%s): capacity %g",
                profile.partition,
                tiers,
                profile.capacity,
            )
