"""Which client answers a query, and what all say together (Paper B, Eq. 10, and Section 3).

n is queries, m clients, C components, V voters, K classes.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedhet_app.mixture.density_ratio import log_tau


def client_log_weights(scores: Tensor, tau: Tensor, prior: bool) -> Tensor:
    """Return by how much each client suits each query, shape ``(n, m)`` (Eq. 10).

    rho_i pi_ic = tau_ic / n, so log rho_i + log sum_c pi_ic exp(s_ic) is, up to the constant log n,
    log sum_c tau_ic exp(s_ic).

    Args:
        scores: Log density ratios s_ic(x), shape ``(n, m, C)``.
        tau: Summed responsibilities, shape ``(m, C)``.
        prior: Whether clients with more examples are preferred, by rho_i as in (10); else the
            density alone decides, as in FedDRM.
    """
    table = log_tau(tau)
    weights = (scores + table).logsumexp(dim=2)
    return weights if prior else weights - table.logsumexp(dim=1)


def majority(probabilities: Tensor, tie: Literal["smallest", "prob"]) -> Tensor:
    """Return the class that most voters put first, int64 ``(n,)``.

    Args:
        probabilities: Every voter's class probabilities, shape ``(V, n, K)``.
        tie: Of the classes with equally many votes, the ``smallest`` wins, or the one with the
            largest summed probability (``prob``).
    """
    votes = F.one_hot(probabilities.argmax(dim=2), probabilities.shape[2]).sum(dim=0)  # (n, K)
    if tie == "smallest":
        return votes.argmax(dim=1)
    first = votes == votes.amax(dim=1, keepdim=True)
    return probabilities.sum(dim=0).where(first, -1.0).argmax(dim=1)


def confusion(true: Tensor, chosen: Tensor, num_clients: int) -> Tensor:
    """Return how many queries of each client (row) went to each (column), int64 ``(m, m)``.

    Args:
        true: The client that each query comes from, int64, shape ``(n,)``.
        chosen: The client that it was routed to, int64, shape ``(n,)``.
        num_clients: m.
    """
    cells = true * num_clients + chosen
    return torch.bincount(cells, minlength=num_clients**2).view(num_clients, num_clients)
