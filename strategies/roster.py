"""Nodes that go and come back while a run goes on.

A SuperNode without a key has another node id after every start. Its partition says which client it
is: it takes the place of the node that had the partition, once Flower no longer lists that one.
"""

import logging
import time

from fedhet_app import wire
from fedhet_app.config import Config
from fedhet_app.errors import FedhetError
from fedhet_app.wire import Profile
from strategies.federation import (
    POLL_SECONDS,
    Federation,
    check_capacity,
    checked_profile,
    profile_queries,
)
from strategies.watched_grid import WatchedGrid

LOG = logging.getLogger("fedhet")


class Roster:
    """Who is here: ``federation.nodes``, kept up to date.

    Args:
        config: ``node-timeout`` and ``min-replies``.
        federation: The nodes at the start, whose shares and capacities stay for the whole run.
    """

    def __init__(self, config: Config, federation: Federation) -> None:
        self._config, self._federation = config, federation
        self._asked: dict[str, int] = {}
        self._told: dict[int, str | None] = {}
        self._silent: set[int] = set()
        self._waiting: list[Profile] = []
        self._present = set(federation.nodes)

    def is_present(self, partition: int) -> bool:
        """Return whether the node of a partition was listed before the current round."""
        return partition in self._present

    def renew(self, grid: WatchedGrid, next_round: int) -> None:
        """Give partitions whose node is gone to nodes that have come, before a round.

        At most ``node-timeout`` seconds are waited for: for new nodes to say who they are while a
        client is missing, once for each of them, and for ``min-replies`` clients to be here.
        """
        self._look(grid)
        clients, enough = len(self._federation.nodes), self._config.min_replies
        timeout = self._config.node_timeout
        if len(self._present) < enough:
            came = f"{len(self._present)} of {clients} clients are here"
            LOG.warning("round %d: %s; waiting up to %g s for more", next_round, came, timeout)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            here = len(self._present)
            if here >= enough and (here == clients or not self._awaited):
                return
            time.sleep(POLL_SECONDS)
            self._look(grid)
        for node in sorted(self._awaited):
            LOG.warning("a node that came later (%d) has not said in %g s who it is", node, timeout)
        self._silent |= self._awaited

    @property
    def _awaited(self) -> set[int]:
        """The nodes that were asked who they are, and have not let a whole wait pass."""
        return set(self._asked.values()) - self._silent

    def _look(self, grid: WatchedGrid) -> None:
        online, nodes = set(grid.get_node_ids()), self._federation.nodes
        self._present = {partition for partition, node in nodes.items() if node in online}
        self._ask(grid, online - set(nodes.values()))
        self._hear(grid)
        for profile in self._waiting.copy():
            if profile.node_id not in online:
                self._waiting.remove(profile)
            elif not self.is_present(profile.partition):
                nodes[profile.partition] = profile.node_id
                self._present.add(profile.partition)
                self._waiting.remove(profile)
                LOG.info("client %d is back, as another node", profile.partition)

    def _ask(self, grid: WatchedGrid, spare: set[int]) -> None:
        """Ask nodes that no client has for their profiles, once for each of their starts."""
        starts = grid.starts() if spare else {}
        self._told = {
            node: start
            for node, start in self._told.items()
            if node in spare and starts.get(node) == start
        }
        new = sorted(spare - self._told.keys())
        if not new:
            return
        ids = grid.push_messages(profile_queries(new, self._config.node_timeout))
        self._asked |= dict(zip(ids, new, strict=True))
        self._told |= {node: starts.get(node) for node in new}

    def _hear(self, grid: WatchedGrid) -> None:
        """Take in the profiles that have come."""
        if not self._asked:
            return
        for reply in grid.pull_messages(list(self._asked)):
            node = self._asked.pop(reply.metadata.reply_to_message_id)
            if wire.is_passing(reply):
                self._told.pop(node, None)  # to be asked again, when it is back or works
                continue
            try:
                profile = checked_profile(reply)
                self._check(profile)
            except FedhetError as error:
                LOG.warning("a node that came later cannot take part: %s", error)
                continue
            self._waiting = [each for each in self._waiting if each.node_id != node] + [profile]
            if self.is_present(profile.partition):
                LOG.warning(
                    "a second node has partition %d; it is not used while the first is listed",
                    profile.partition,
                )

    def _check(self, profile: Profile) -> None:
        """Refuse a node that is no replacement of the one that had its partition.

        Raises:
            FedhetError: It has other data, or can train less.
        """
        partition, known = profile.partition, self._federation.profiles
        if not 0 <= partition < len(known):
            remedy = f"this run has partitions 0 to {len(known) - 1}"
            raise FedhetError("partition-id", partition, remedy)
        for name in ("num_partitions", "examples", "test_examples", "columns"):
            before, now = getattr(known[partition], name), getattr(profile, name)
            if now != before:
                remedy = f"the node of partition {partition} had {before!r} at the run's start"
                raise FedhetError(name.replace("_", "-"), now, remedy)
        check_capacity(profile, float(self._federation.caps[partition]))
