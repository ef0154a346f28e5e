"""Leave-one-out in closed form: the posterior of f at each training input, given all the other examples.

With f and V = J Σ̃ Jᵀ of one example at the mean of the posterior, and r, Λ = S Sᵀ of its site there, removing the site
gives

    V₋ = V + V S (I − SᵀVS)⁻¹ SᵀV = (I − VΛ)⁻¹ V ,        f₋ = f + V₋ r .

This is exact for a Gaussian likelihood. For others it is exact to first order, and valid only at a minimum: of the loss
of the network, or of the linearised network (`LinearisedMode`), where Σᵢ Jᵢᵀ rᵢ and the prior balance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.inference.base import Posterior
from dnn2gp.inference.predictive import Latent
from dnn2gp.support.errors import IllConditionedError, InputError
from dnn2gp.weights.expansion import Expansion

# I − SᵀVS has an error of about 1e-16, so its inverse keeps six digits down to this eigenvalue.
_SMALLEST = 1e-10


@final
@dataclass(frozen=True, eq=False)
class LeftOut:
    """f at each training input without its own example, and how far the example had moved it."""

    shift: Float[Tensor, "N K"]
    """f₋ − f = V₋ r."""
    covariance: Float[Tensor, "N K K"]
    """V₋, in float64."""

    @staticmethod
    def of(expansion: Expansion, latent: Latent) -> LeftOut:
        """From the posterior at the training inputs, exactly.

        Raises:
            InputError: If an approximate covariance claims that an example is known better than it alone allows.
        """
        root, V = expansion.root.double(), latent.covariance.double()
        spread = V @ root
        gap = torch.eye(root.shape[2], dtype=V.dtype, device=V.device) - root.mT @ spread
        _check_gap(gap)
        covariance = V + spread @ torch.linalg.solve(gap, spread.mT)
        covariance = (covariance + covariance.mT) / 2
        residual = site_residual(expansion, latent).unsqueeze(-1)
        return LeftOut((covariance @ residual).squeeze(-1), covariance)

    @staticmethod
    def infinitesimal(expansion: Expansion, latent: Latent) -> LeftOut:
        """To first order in the weight of the example: V₋ ≈ V and f₋ ≈ f + V r, which is defined for every V."""
        V = latent.covariance.double()
        return LeftOut((V @ site_residual(expansion, latent).unsqueeze(-1)).squeeze(-1), V)


def left_out(expansion: Expansion, latent: Latent, posterior: Posterior) -> LeftOut:
    """Leave-one-out of some training examples with this `latent`; see `LeftOut.of`.

    If several processes share the examples, all of them must call this, and an error in one is an error in all.
    """
    found, error = None, None
    try:
        found = LeftOut.of(expansion, latent)
    except IllConditionedError as own:
        error = own
    if expansion.team.largest(float(found is None)) == 0 and found is not None:
        return found
    if posterior.exact:
        raise error or IllConditionedError("leave_one_out: an example of another process is lost to rounding.")
    if posterior.solves:
        return LeftOut.of(expansion, bounded(expansion, latent, posterior))
    raise InputError(
        f"leave_one_out: it is not defined for this {posterior.description}, whose covariance is not that of the data "
        "with each example counted once. Use structure=Dense(), or a validation set."
    ) from error


def bounded(expansion: Expansion, latent: Latent, posterior: Posterior) -> Latent:
    """Bound V by (K⁻¹ + Λ)⁻¹, its value given this example alone, with K its prior covariance: more data only reduce V.

    An estimate of V with a random error may exceed this if an example determines its output almost alone.
    """
    root, V = expansion.root.double(), latent.covariance.double()
    K = expansion.features.covariance(expansion.inputs, posterior.model.prior.precision.double()).double()
    spread = K @ root
    gap = torch.eye(root.shape[2], dtype=V.dtype, device=V.device) + root.mT @ spread
    values, vectors = torch.linalg.eigh(K - spread @ torch.linalg.solve(gap, spread.mT))
    values = values.clamp(min=torch.finfo(V.dtype).eps * values[:, -1:])
    lengths = values.sqrt()
    inner, turn = torch.linalg.eigh((vectors.mT @ V @ vectors) / (lengths[:, :, None] * lengths[:, None]))
    back = (vectors * lengths[:, None]) @ turn
    return replace(latent, covariance=(back * inner.clamp(max=1)[:, None]) @ back.mT)


def site_residual(expansion: Expansion, latent: Latent) -> Float[Tensor, "N K"]:
    """r at the mean of f: r at the anchor, plus Λ times the shift that `latent` adds (zero but for one step)."""
    moved = expansion.root.double().mT @ latent.shift.double().unsqueeze(-1)
    return expansion.residual.double() + (expansion.root.double() @ moved).squeeze(-1)


def _check_gap(gap: Float[Tensor, "N R R"]) -> None:
    """Raise unless I − SᵀVS is positive definite: it is in exact arithmetic, but rounding can hide that."""
    smallest = torch.linalg.eigvalsh(gap)[:, 0]
    if len(smallest) and not bool((smallest > _SMALLEST).all()):
        row = int(smallest.argmin())
        raise IllConditionedError(
            f"leave_one_out: example {row} determines its own output almost alone (1 − SᵀVS = "
            f"{smallest[row].item():.1g}), so that what remains without it is lost to rounding. Use a larger noise σ "
            "or prior precision δ."
        )
