"""Who takes part: waiting for nodes, asking for their profiles, ordering them by partition."""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedhet_app import wire
from fedhet_app.config import Config
from fedhet_app.errors import FedhetError
from fedhet_app.seeding import rng_for
from fedhet_app.submodel.allocation import draw_capacities
from fedhet_app.versions import code_fingerprint
from fedhet_app.wire import Profile, Rejection

LOG = logging.getLogger("fedhet")
POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Federation:
    """The nodes of a run, in the order of their partition ids.

    Attributes:
        profiles: One per node; ``profiles[i].partition == i``.
        caps: Largest width each can train, shape ``(N,)``.
    """

    profiles: tuple[Profile, ...]
    caps: NDArray[np.float64]

    @cached_property
    def nodes(self) -> dict[int, int]:
        """The node id of each partition: one mapping, changed in place where a node is replaced."""
        return {profile.partition: profile.node_id for profile in self.profiles}


def gather(grid: Grid, config: Config) -> Federation:
    """Wait for the nodes and ask each for its profile.

    Raises:
        FedhetError: Too few nodes in ``node-timeout`` seconds, two nodes with one partition,
            another copy of the code, or a node that cannot take part.
    """
    ordered, expected = who_is_here(grid, config)
    if len(ordered) < expected:
        came = f"{len(ordered)} of {expected} nodes came in that many seconds"
        remedy = f"{came}; start more, or allow more"
        raise FedhetError("node-timeout", config.node_timeout, remedy)
    return Federation(profiles=ordered, caps=capacities(config.with_nodes(len(ordered)), ordered))


def who_is_here(
    grid: Grid, config: Config, *, leave_out: bool = False
) -> tuple[tuple[Profile, ...], int]:
    """Return the profiles of the nodes that come in ``node-timeout`` seconds, by partition.

    Behind them stands how many were waited for: what the nodes were told (``num-partitions``),
    which under ``flwr run`` need not be ``num-clients``. A node that cannot take part, or runs
    another copy of the code, is an error, unless it is to be left out.

    Raises:
        FedhetError: Two nodes with one partition, or a node that cannot take part.
    """
    profiles: dict[int, Profile] = {}
    unfit: set[int] = set()
    deadline = time.monotonic() + config.node_timeout
    while True:
        listed = set(grid.get_node_ids())
        profiles = {node: profile for node, profile in profiles.items() if node in listed}
        new = listed - set(profiles) - unfit
        left = max(deadline - time.monotonic(), POLL_SECONDS)
        for reply in _ask(grid, sorted(new), left):
            try:
                profile = checked_profile(reply)
            except FedhetError as error:
                if not leave_out:
                    raise
                LOG.warning("a node is left out: %s", error)
                unfit.add(reply.metadata.src_node_id)
            else:
                profiles[profile.node_id] = profile
        ordered = _ordered(list(profiles.values()))
        expected = max((p.num_partitions for p in profiles.values()), default=config.num_clients)
        if len(profiles) >= expected or time.monotonic() > deadline:
            return ordered, expected
        time.sleep(POLL_SECONDS)


def _ask(grid: Grid, nodes: Iterable[int], timeout: float) -> Iterator[Message]:
    """Yield the answers of nodes that are asked for their profiles, but for passing errors."""
    questions = profile_queries(nodes, timeout)
    if not questions:
        return
    for reply in grid.send_and_receive(questions, timeout=timeout):
        if wire.is_passing(reply):  # while it is listed and there is time, it is asked again
            LOG.warning("a node has not said who it is: %s", wire.last_line(reply.error.reason))
        else:
            yield reply


def profile_queries(nodes: Iterable[int], ttl: float | None = None) -> list[Message]:
    """Return a message for each node that asks for its profile, and is void after ``ttl`` s."""
    content = RecordDict({wire.CONFIG: ConfigRecord()})
    return [
        Message(content, dst_node_id=node, message_type=wire.QUERY_PROFILE, ttl=ttl)
        for node in nodes
    ]


def checked_profile(reply: Message) -> Profile:
    """Return the profile of a node that can take part.

    Raises:
        FedhetError: It cannot, or runs another copy of the code.
    """
    try:
        profile = wire.read_profile(reply)
    except Rejection as rejection:
        remedy = f"a node cannot take part: {rejection}"
        raise FedhetError("node", reply.metadata.src_node_id, remedy) from rejection
    if profile.code != code_fingerprint():
        remedy = (
            f"the node of partition {profile.partition} runs another copy of fedhet than the "
            "server; start the SuperLink in an empty folder, or update the node"
        )
        raise FedhetError("code", profile.code[:12], remedy)
    return profile


def _ordered(profiles: list[Profile]) -> tuple[Profile, ...]:
    ordered = sorted(profiles, key=lambda profile: profile.partition)
    counts = {profile.num_partitions: profile.partition for profile in reversed(ordered)}
    if len(counts) > 1:
        told = ", ".join(
            f"that of partition {who} {count}" for count, who in sorted(counts.items())
        )
        remedy = f"nodes were told different numbers ({told}); give all of them the same"
        raise FedhetError("num-partitions", sorted(counts), remedy)
    for one, two in pairwise(ordered):
        if one.partition == two.partition:
            remedy = "two nodes have this partition; give every node its own"
            raise FedhetError("partition-id", one.partition, remedy)
    return tuple(ordered)


def check_capacity(profile: Profile, least: float) -> None:
    """Refuse a node that can train less than its client has from the run's start.

    Raises:
        FedhetError: It says so.
    """
    if 0.0 < profile.capacity < least:
        remedy = f"partition {profile.partition} has trained up to {least:g} from the run's start"
        raise FedhetError("capacity", profile.capacity, remedy)


def capacities(config: Config, profiles: tuple[Profile, ...]) -> NDArray[np.float64]:
    """Return each node's cap: its own where it names one, else drawn by seed and partition.

    Raises:
        FedhetError: A node names a capacity outside (0, 1].
    """
    for profile in profiles:
        if not 0.0 <= profile.capacity <= 1.0:
            remedy = f"of partition {profile.partition}: must be above 0 and at most 1"
            raise FedhetError("capacity", profile.capacity, remedy)
    rng = rng_for(config.seed, "capacity")
    caps, promoted = draw_capacities(len(profiles), config.tiers, config.probs, rng)
    matters = not (config.personal or any(profile.capacity for profile in profiles))
    if promoted and matters:
        LOG.info("no client drew the largest tier %s; one was promoted to it", config.tiers[-1])
    own = np.array([profile.capacity for profile in profiles])
    return np.where(own > 0, own, caps)
