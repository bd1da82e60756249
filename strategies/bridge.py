"""The exact profiled objective beside its surrogate along a run (Paper B, Appendix D.4).

It takes what no deployment has: every client's images and responsibilities in one place. So it is
for simulations, in the rounds that ``fedspm.bridge-every`` names.

Deviations:
    1. gamma is free up to one constant, which the surrogate does not see and the constraints (4)
       do. Everything is measured twice: with gamma as trained, and shifted as in App. C.5.
    2. A pair of client and component that explains less than one example has no constraint (4) and
       no multiplier; its lambda = tau / n at a critical point is 0. Nothing trains the density of
       such a component, and where its ratio exceeds one at no example, (6) has no solution.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedhet_app.mixture import profile
from fedhet_app.mixture_model import MixtureModel, batch_size
from fedhet_app.task import Task

Values = NDArray[np.float64]

_FEWEST = 1.0
"""Examples that a pair must explain to be constrained."""


@dataclass(frozen=True, kw_only=True)
class ExpectationStep:
    """What the clients computed in a round, client after client as in ``Partition.order``.

    Attributes:
        w: Responsibilities, shape ``(n, C)``.
        log_mixture: log sum_c pi_c exp(s_c) P_c(y|x) of every example, shape ``(n,)``.
        tau: The table, shape ``(m, C)``.
    """

    w: Values
    log_mixture: Values
    tau: Values


def measure_bridge(
    task: Task,
    model: MixtureModel,
    before: NDArray[np.float32],
    after: NDArray[np.float32],
    step: ExpectationStep,
) -> dict[str, dict[str, Any]]:
    """Return objectives, gradients and feasibility of one round, raw and shifted.

    Args:
        task: All clients' data.
        model: Its routing networks; what they hold is lost.
        before: The shared vector that the round started from.
        after: The one that it ended with.
        step: The round's responsibilities, which both are measured with.
    """
    scores = [_scores(task, model, vector) for vector in (before, after)]
    owners = np.repeat(np.arange(len(step.tau)), task.partition.sizes)
    components = step.tau.shape[1]
    columns = owners[:, None] * components + np.arange(components)
    tau = step.tau.ravel()
    living = tau >= _FEWEST
    surrogate, surrogate_next = (
        profile.surrogate_objective(s, tau, step.w, columns) for s in scores
    )
    shifts = {"raw": (0.0, 0.0), "shifted": tuple(profile.shift(s, tau) for s in scores)}
    pulls = {"surrogate": profile.surrogate_gradient(scores[0], tau, step.w, columns)}
    rows = {}
    for name, (shift, shift_next) in shifts.items():
        s, s_next = scores[0] + shift, scores[1] + shift_next
        first, second = (_solved(each, tau, living) for each in (s, s_next))
        if first.feasible:
            pulls[name] = profile.gradient(s, first.lambda_, step.w, columns)
        rows[name] = {
            "f": profile.objective(s, first.lambda_, step.w, columns),
            "f-next": profile.objective(s_next, second.lambda_, step.w, columns),
            "profile": profile.profile_objective(s, first.lambda_, step.log_mixture + shift),
            "surrogate": surrogate,
            "surrogate-next": surrogate_next,
            "residual": first.residual,
            "residual-next": second.residual,
            "smallest-weight": min(first.smallest_weight, second.smallest_weight),
            "feasible": first.feasible and second.feasible,
            "empty-pairs": int((~living).sum()),
            "solvable": all(
                solution.feasible or profile.feasible_by_lp(each[:, living])
                for solution, each in ((first, s), (second, s_next))
            ),
        }
    norms = _gradient_norms(task, model, before, pulls)
    for name, row in rows.items():
        row["gradient-norm2"] = norms.get(name, math.nan)
        row["surrogate-gradient-norm2"] = norms["surrogate"]
    return {name: _json_ready(row) for name, row in rows.items()}


def _solved(s: Values, tau: Values, living: NDArray[np.bool_]) -> profile.Multipliers:
    """Return the multipliers of the living pairs, among zeros for the others, shape ``(m C,)``."""
    solution = profile.solve_multipliers(s[:, living], tau[living] / tau.sum())
    lambda_ = np.zeros(len(tau))
    lambda_[living] = solution.lambda_
    return replace(solution, lambda_=lambda_)


def _json_ready(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value if math.isfinite(value) else None for key, value in row.items()}


def _scores(task: Task, model: MixtureModel, vector: NDArray[np.float32]) -> Values:
    """Return the scores of all training examples, float64, shape ``(n, m C)``."""
    model.load(vector)
    rows = torch.from_numpy(task.partition.order).to(task.device)
    scores = model.outputs(task.train_examples, rows, predict=False).scores
    flat: Values = scores.flatten(1).double().cpu().numpy()
    return flat


def _gradient_norms(
    task: Task, model: MixtureModel, vector: NDArray[np.float32], pulls: dict[str, Values]
) -> dict[str, float]:
    """Return the squared norms of gradients in (gamma, xi, nu), given those in the scores."""
    model.load(vector)
    router = model.router
    router.module.eval()
    totals = {name: torch.zeros_like(router.grad, dtype=torch.float64) for name in pulls}
    rows = torch.from_numpy(task.partition.order).to(task.device)
    size = batch_size(task.spec)
    for start in range(0, len(rows), size):
        inputs, _ = task.train_examples.batch(rows[start : start + size])
        scores = router.module(inputs).flatten(1)
        for name, pull in pulls.items():
            router.grad.zero_()
            given = torch.from_numpy(pull[start : start + size]).to(scores)
            scores.backward(given, retain_graph=True)
            totals[name] += router.grad
    router.grad.zero_()
    return {name: float(total.square().sum()) for name, total in totals.items()}
