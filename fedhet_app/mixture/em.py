"""Expectation maximisation for one client's mixture of classifiers (Paper B, Sections 2.2 and 2.3).

Component c of client i has the classifier P_ic(k|x) = softmax of its logits and the log density
ratio s_ic(x), here called its score. n is examples, C components, K classes. Probabilities are
worked out in float64: components that are equal then get weights that are equal to the last bit,
which is how a test can tell a mixture that never separates from one that does slowly.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

SMALLEST_PI = 1e-8
"""A component without examples keeps this mixing weight, so that its logarithm stays finite."""


def log_weights(pi: Tensor) -> Tensor:
    """Return log pi, shape ``(C,)``, with pi no smaller than ``SMALLEST_PI``."""
    return pi.clamp_min(SMALLEST_PI).log()


def responsibilities(logits: Tensor, labels: Tensor, scores: Tensor, log_pi: Tensor) -> Tensor:
    """Return w_jc, the probability of component c given image and label (Eq. 7).

    Args:
        logits: Of every component's classifier, shape ``(n, C, K)``.
        labels: Classes, int64, shape ``(n,)``.
        scores: The client's own log density ratios, shape ``(n, C)``.
        log_pi: From ``log_weights``, shape ``(C,)``.

    Returns:
        float32 of shape ``(n, C)``, rows sum to one.
    """
    return _log_joint(logits, labels, scores, log_pi).softmax(dim=1).float()


def log_mixture(logits: Tensor, labels: Tensor, scores: Tensor, log_pi: Tensor) -> Tensor:
    """Return log sum_c pi_c exp(s_c) P_c(y|x), float32 ``(n,)``; arguments as above.

    It is what the profiled log empirical likelihood has of the mixture (Section 2.2).
    """
    return _log_joint(logits, labels, scores, log_pi).logsumexp(dim=1).float()


def _log_joint(logits: Tensor, labels: Tensor, scores: Tensor, log_pi: Tensor) -> Tensor:
    index = labels[:, None, None].expand(-1, logits.shape[1], 1)
    likelihood = logits.double().log_softmax(dim=2).gather(2, index).squeeze(2)
    return log_pi.double() + likelihood + scores.double()


def component_posterior(scores: Tensor, log_pi: Tensor) -> Tensor:
    """Return P_i(c|x), what is known of the component without a label, float32 ``(n, C)``.

    Args:
        scores: The client's own log density ratios, shape ``(n, C)``.
        log_pi: From ``log_weights``, shape ``(C,)``.
    """
    return (log_pi.double() + scores.double()).softmax(dim=1).float()


def mixture_probabilities(logits: Tensor, posterior: Tensor) -> Tensor:
    """Return the class probabilities of the mixture, shape ``(n, K)`` (Eq. 11).

    Args:
        logits: Of every component's classifier, shape ``(n, C, K)``.
        posterior: From ``component_posterior``, shape ``(n, C)``.
    """
    return torch.einsum("nck,nc->nk", logits.softmax(dim=2), posterior.to(logits.dtype))


def supervised_loss(logits: Tensor, labels: Tensor, w: Tensor) -> Tensor:
    """Return the mean over a batch of sum_c w_jc times component c's cross-entropy (-Q1 / n).

    Args:
        logits: Shape ``(B, C, K)``.
        labels: Classes, int64, shape ``(B,)``.
        w: Responsibilities, held fixed, shape ``(B, C)``.
    """
    batch, components, classes = logits.shape
    # Flat rows take the same kernel as a single classifier's: C = 1 gives its gradients exactly.
    flat = logits.reshape(batch * components, classes)
    losses = F.cross_entropy(flat, labels.repeat_interleave(components), reduction="none")
    return (losses.view(batch, components) * w).sum(dim=1).mean()


def effective_components(pi: Tensor) -> float:
    """Return exp of the entropy of pi, shape ``(C,)``: C when all are equal, 1 when one is left."""
    pi = pi.double()
    return float(torch.special.entr(pi / pi.sum()).sum().exp())


def purity(w: Tensor, truth: Tensor) -> float:
    """Return the share of examples whose group by argmax w has their component as its commonest.

    Several groups may have the same commonest component, as there may be more groups than true
    components; it is never below the share of the commonest component of all.

    Args:
        w: Responsibilities, shape ``(n, C)``.
        truth: True components, non-negative integers, shape ``(n,)``.
    """
    truth = truth.to(w.device, torch.int64)
    kinds = int(truth.max()) + 1
    cells = w.argmax(dim=1) * kinds + truth
    counts = torch.bincount(cells, minlength=w.shape[1] * kinds).view(w.shape[1], kinds)
    return float(counts.amax(dim=1).sum()) / len(truth)
