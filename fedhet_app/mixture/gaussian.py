"""Gaussians over features that clients share, each client knowing sums over its own examples alone.

FedGMM (Wu et al. 2023): example j of client i belongs to Gaussian a and classifier b with the
probability pi_i(a, b), which is the client's own. Clients send moments, sum_j q_ja [1 z_j][1 z_j]';
what follows from their sum is what pooled data would give, by the law of total covariance. With one
Gaussian and one classifier nothing is left to choose. n is examples, A Gaussians, B classifiers, d
dimensions of the features z. All arithmetic is float64.

Deviations:
    1. The published code averages the clients' covariances, each around the client's own mean,
       which loses how far those means lie apart.
    2. It starts from k-means on pooled features and covariances of 100 I. Here features are
       standardised, the means are drawn from N(0, I) and the covariances are I, so that no example
       leaves its client.
    3. A Gaussian with fewer than d + 1 examples keeps its mean and takes the covariance of all
       features: its own would be singular but for epsilon.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Values = NDArray[np.float64]

SMALLEST_VARIANCE = 1e-6
"""Of the largest: a direction of features that varies less than this is left at zero."""
_ROUNDING = 1e-5
_SMALLEST_FLOAT = 1e-30


@dataclass(frozen=True, kw_only=True)
class Projection:
    """What makes standardised features of an encoder's: z = axes (h - center).

    Attributes:
        center: Shape ``(D,)``.
        axes: Principal axes, each over the standard deviation along it, shape ``(d, D)``.
    """

    center: Values
    axes: Values


@dataclass(frozen=True, kw_only=True)
class Gaussians:
    """The shared components: ``means`` (A, d), ``covariances`` (A, d, d), positive definite."""

    means: Values
    covariances: Values


def moments(z: Tensor, weights: Tensor) -> Tensor:
    """Return sum_j q_ja [1 z_j][1 z_j]', float64 of shape ``(A, d + 1, d + 1)``.

    Args:
        z: Features, shape ``(n, d)``.
        weights: q, shape ``(n, A)``.
    """
    z = z.double()
    augmented = torch.cat([torch.ones_like(z[:, :1]), z], dim=1)
    return torch.stack([(augmented.T * of) @ augmented for of in weights.double().T])


def could_be_moments(sums: Values) -> bool:
    """Return whether some examples could have these moments, up to rounding.

    Args:
        sums: Shape ``(A, d + 1, d + 1)``.
    """
    scales = np.sqrt(np.maximum(sums.diagonal(axis1=1, axis2=2), _SMALLEST_FLOAT))
    sums = sums / (scales[:, :, None] * scales[:, None, :])  # of one feature nothing hides another
    skew = np.abs(sums - sums.swapaxes(1, 2)).max()
    smallest = np.linalg.eigvalsh(sums).min()
    return bool(skew <= _ROUNDING and smallest >= -_ROUNDING * sums.shape[1])


def principal_axes(sums: Values, dimensions: int) -> Projection:
    """Return the projection to the directions of largest variance, which becomes one (PCA).

    Args:
        sums: Moments of all features, shape ``(D + 1, D + 1)``.
        dimensions: d, at most D.
    """
    center, covariance = _mean_and_covariance(sums)
    variances, vectors = np.linalg.eigh(covariance)
    variances, axes = variances[::-1][:dimensions], vectors.T[::-1][:dimensions]
    # An eigenvector's sign is the library's choice: let its largest coordinate be positive.
    largest = np.abs(axes).argmax(axis=1)
    axes = axes * np.sign(axes[np.arange(dimensions), largest])[:, None]
    kept = variances > SMALLEST_VARIANCE * variances[0]
    scales = np.where(kept, 1 / np.sqrt(np.where(kept, variances, 1.0)), 0.0)
    return Projection(center=center, axes=axes * scales[:, None])


def m_step(
    sums: Values, before: Gaussians, *, epsilon: float, diagonal: bool
) -> tuple[Gaussians, list[int]]:
    """Return the Gaussians of the pooled examples, and which of them stay as they were.

    A Gaussian stays whose covariance is not finite, or not positive definite even with epsilon.

    Args:
        sums: Moments of all clients together, shape ``(A, d + 1, d + 1)``.
        before: Where a Gaussian without examples stays.
        epsilon: Added to the diagonal of every covariance.
        diagonal: Whether covariances keep their diagonal alone.
    """
    dimensions = before.means.shape[1]
    means, covariances = before.means.copy(), np.empty_like(before.covariances)
    _, of_all = _mean_and_covariance(sums.sum(axis=0))
    for a, own in enumerate(sums):
        covariances[a] = of_all
        if own[0, 0] >= dimensions + 1:
            means[a], covariances[a] = _mean_and_covariance(own)
    if diagonal:
        covariances *= np.eye(dimensions)
    covariances += epsilon * np.eye(dimensions)
    unusable = [a for a, each in enumerate(covariances) if not _is_usable(each)]
    means[unusable], covariances[unusable] = before.means[unusable], before.covariances[unusable]
    return Gaussians(means=means, covariances=covariances), unusable


def _is_usable(covariance: Values) -> bool:
    # Single precision is what travels, so that is what must be positive definite.
    with np.errstate(over="ignore"):
        covariance = covariance.astype(np.float32).astype(np.float64)
    try:
        return bool(np.isfinite(np.linalg.cholesky(covariance)).all())
    except np.linalg.LinAlgError:
        return False


def _mean_and_covariance(sums: Values) -> tuple[Values, Values]:
    mean = sums[0, 1:] / sums[0, 0]
    covariance = sums[1:, 1:] / sums[0, 0] - np.outer(mean, mean)
    return mean, (covariance + covariance.T) / 2


def log_densities(z: Tensor, gaussians: Gaussians) -> Tensor:
    """Return log N(z; mu_a, Sigma_a) by Cholesky factors, float64 of shape ``(n, A)``.

    Args:
        z: Features, shape ``(n, d)``.
        gaussians: The components.
    """
    means, covariances = (
        torch.from_numpy(each).to(z.device) for each in (gaussians.means, gaussians.covariances)
    )
    factors = torch.linalg.cholesky(covariances)  # (A, d, d)
    apart = (z.double() - means[:, None]).mT  # (A, d, n)
    whitened = torch.linalg.solve_triangular(factors, apart, upper=False)
    log_determinants = factors.diagonal(dim1=1, dim2=2).log().sum(dim=1)  # of the factors
    constant = 0.5 * z.shape[1] * math.log(2 * math.pi)
    energies: Tensor = 0.5 * whitened.square().sum(dim=1) + log_determinants[:, None] + constant
    return -energies.T


def joint_posterior(
    log_pi: Tensor, densities: Tensor, log_likelihoods: Tensor | None = None
) -> Tensor:
    """Return q_j(a, b), proportional to pi(a, b) N_a(z_j) P_b(y_j|x_j), float64 ``(n, A, B)``.

    Args:
        log_pi: The client's, shape ``(A, B)``.
        densities: From ``log_densities``, shape ``(n, A)``.
        log_likelihoods: log P_b(y|x), shape ``(n, B)``; ``None`` where no label is known.
    """
    joint = log_pi.double() + densities.double()[:, :, None]
    if log_likelihoods is not None:
        joint = joint + log_likelihoods.double()[:, None]
    posterior: Tensor = joint.flatten(1).softmax(dim=1).view(joint.shape)
    return posterior
