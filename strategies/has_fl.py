"""HAS-FL (Paper A, Algorithm 1, lines 20-31): widths from estimated heterogeneity.

After aggregation, in rounds t > warmup that are multiples of ``adapt-every``: estimate each
sampled client's divergence (Eq. 5), smooth it, rescale all estimates to unit mean every
``normalise-every`` rounds, and set p_i = min(p_i^max, p_min + gamma * H_i / mean H) (Eq. 6); with
the coverage guarantee the clients of the largest cap stay at it. Until the first adaptation every
client trains at its cap. With gamma = 0 and no guarantee it is Uniform of width p_min from then on;
with all caps at most p_min it is HeteroFL.

Three more estimators stand beside the paper's: ``leave-one-out`` measures against the mean of the
other clients, ``common-core`` on the narrowest slice that any client was allotted, which all of
them train, and ``oracle-tv`` puts the true distance of the labels in the place of the estimates.

Deviations:
    1. Estimates move at adaptation rounds only: the paper's text puts them inside that block.
    2. The mean in Eq. 6 runs over all clients, sampled or not.
    3. The oracle is not smoothed: it knows its value from the first adaptation on.
"""

import numpy as np
from numpy.typing import NDArray

from fedhet_app.data.skew import total_variation
from fedhet_app.submodel.allocation import has_fl_widths
from fedhet_app.submodel.divergence import divergence, leave_one_out, rescale, smooth
from fedhet_app.task import Task
from strategies.allocation import Allocation, Columns, Outcome, Widths


class HasFL(Allocation):
    """The adaptive policy.

    Args:
        task: Its configuration's ``has-fl.*`` values, and the network's parameters.
        caps: Largest width of each client, shape ``(N,)``.
    """

    def __init__(self, task: Task, caps: Widths) -> None:
        self._options, self._caps = task.config.has_fl, caps
        self._slicer, self._num_params = task.slicer, task.slicer.num_params(1.0)
        if self._options.estimator == "oracle-tv":
            self._truth = total_variation(task.histograms)
        self._estimates: NDArray[np.float64] = np.ones_like(caps)
        self._widths: Widths = caps

    def widths(self, server_round: int) -> Widths:
        """Return the widths of the last adaptation, or the caps before the first."""
        return self._widths

    def observe(self, outcome: Outcome) -> Columns:
        """Adapt where the round is due; log raw and smoothed divergence."""
        options, server_round = self._options, outcome.server_round
        if (
            server_round <= options.warmup
            or server_round % options.adapt_every
            or not outcome.updates
        ):
            return {"divergence": dict(enumerate(self._estimates.tolist()))}
        raw = self._observed(outcome)
        known = np.flatnonzero(np.isfinite(raw))
        who, raw = np.array(outcome.partitions)[known], raw[known]
        if options.estimator == "oracle-tv":
            self._estimates = self._truth
        else:
            self._estimates = smooth(self._estimates, raw, who, options.beta)
            if server_round % options.normalise_every == 0:
                self._estimates = rescale(self._estimates)
        self._widths = has_fl_widths(
            self._caps,
            self._estimates,
            p_min=options.p_min,
            gamma=options.gamma,
            coverage=options.coverage,
        )
        return {
            "divergence": dict(enumerate(self._estimates.tolist())),
            "divergence-raw": dict(zip(who.tolist(), raw.tolist(), strict=True)),
            "allocated-width": dict(enumerate(self._widths.tolist())),
        }

    def _observed(self, outcome: Outcome) -> NDArray[np.float64]:
        """Return this round's estimate for each update, NaN where there is none."""
        measured = (outcome.updates, outcome.before, outcome.after, self._num_params)
        match self._options.estimator:
            case "paper":
                return divergence(*measured)
            case "leave-one-out":
                return leave_one_out(*measured)
            case "common-core":
                core = self._slicer.index(float(self._widths.min()))
                return divergence(*measured, core=core)
            case "oracle-tv":
                return self._truth[outcome.partitions]

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Return estimates and widths."""
        return {"estimates": self._estimates, "widths": self._widths}

    def restore(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Continue from a checkpoint's state."""
        self._estimates, self._widths = state["estimates"], state["widths"]
