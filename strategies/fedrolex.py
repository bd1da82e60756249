"""FedRolex (Alam et al. 2022, Algorithm 1): slices that roll over the network from round to round.

A client of capacity p trains k of a layer's C channels, as in HeteroFL, but in round t the channels
{s, ..., s + k - 1} modulo C with s = advance * (t - 1), the same s in every layer. Every channel
has its turn, even where no client can train the whole network; a weight between two channels that
are never in the window together has none, which can happen where no capacity exceeds 1/2 (the
run's ``uncovered`` tells). With advance = 0 it is HeteroFL; with all capacities 1 it is FedAvg.

Deviations:
    1. Coordinates are averaged by examples, as in every method here; the published code counts
       clients, or counts the updates of a coordinate so far.
    2. k is rounded up, to whole groups under group norm, which roll as one; the paper rounds down.
    3. The published code rolls the other way; over a period both train the same windows.
    4. Evaluation measures the leading slices of a width, which is what HeteroFL's are.
"""

from fedhet_app.task import Task
from strategies.allocation import Fixed, Widths


class FedRolex(Fixed):
    """Every client at its cap, in a window that rolls.

    Args:
        task: Its configuration's ``fedrolex.advance``, and the network.
        caps: Largest width of each client, shape ``(N,)``.

    Raises:
        FedhetError: The network's slices cannot roll.
    """

    def __init__(self, task: Task, caps: Widths) -> None:
        super().__init__(caps)
        self.advance = task.config.fedrolex.advance
        task.slicer.unreached(caps.tolist(), self.advance)
