"""The density ratio block of FedSPM as one classification problem (Paper B, Section 2.3).

With u_ic(x) = s_ic(x) + log tau_ic the surrogate Q2~_i is sum_j sum_c w_jc log softmax(u)[i, c],
the softmax over all m C pairs, up to a constant: soft-label cross-entropy whose logits are adjusted
by log tau. With one component, w = 1 and tau_i = n_i, it is FedDRM's cross-entropy on client ids.
"""

from torch import Tensor

SMALLEST_TAU = 1e-8
"""Examples that a component without any counts as, so that its logarithm stays finite."""


def log_tau(tau: Tensor) -> Tensor:
    """Return log tau, shape ``(m, C)``, with tau no smaller than ``SMALLEST_TAU``."""
    return tau.clamp_min(SMALLEST_TAU).log()


def drm_loss(scores: Tensor, log_tau: Tensor, w: Tensor, own: int) -> Tensor:
    """Return the mean over a batch of -Q2~_i, without its constant sum_c w_jc log tau_ic.

    Args:
        scores: Log density ratios of every client and component, shape ``(B, m, C)``.
        log_tau: From ``log_tau``, shape ``(m, C)``.
        w: Responsibilities, held fixed, shape ``(B, C)``.
        own: The client i that the batch comes from.
    """
    log_probabilities = (scores + log_tau).flatten(1).log_softmax(dim=1)
    own_ones = log_probabilities.view(scores.shape)[:, own]  # (B, C)
    return -(own_ones * w).sum(dim=1).mean()
