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
from dnn2gp.inference.split import functionals
from dnn2gp.inference.top_classes import site_rows
from dnn2gp.network.inputs import in_parts, num_examples
from dnn2gp.support.errors import IllConditionedError, InputError
from dnn2gp.support.memory import chunks
from dnn2gp.weights.expansion import Expansion

# I − SᵀVS has an error of about 1e-16, so its inverse keeps six digits down to this eigenvalue.
_SMALLEST = 1e-10


@final
@dataclass(frozen=True, eq=False)
class LeftOut:
    """f at each training input without its own example, and how far the example had moved it."""

    shift: Float[Tensor, "N K"]
    """f₋ − f = V₋ r."""
    covariance: Float[Tensor, "N C C"]
    """V₋, in float64; that of the logits of `Latent.split` and of all others as one, if these are known."""

    @staticmethod
    def of(expansion: Expansion, latent: Latent) -> LeftOut:
        """From the posterior at the training inputs, exactly.

        Raises:
            InputError: If an approximate covariance claims that an example is known better than it alone allows.
        """
        root, V = _site(expansion, latent)
        spread = V @ root
        gap = torch.eye(root.shape[2], dtype=V.dtype, device=V.device) - root.mT @ spread
        _check_gap(gap)
        covariance = V + spread @ torch.linalg.solve(gap, spread.mT)
        return LeftOut._from(expansion, latent, (covariance + covariance.mT) / 2)

    @staticmethod
    def infinitesimal(expansion: Expansion, latent: Latent) -> LeftOut:
        """To first order in the weight of the example: V₋ ≈ V and f₋ ≈ f + V r, which is defined for every V."""
        return LeftOut._from(expansion, latent, _site(expansion, latent)[1])

    @staticmethod
    def _from(expansion: Expansion, latent: Latent, covariance: Float[Tensor, "N q q"]) -> LeftOut:
        """f₋ − f = V₋ r. If the classes that are not in T have one logit, all of them move as it does."""
        if latent.split is None:
            residual = site_residual(expansion, latent)
            return LeftOut((covariance @ residual.unsqueeze(-1)).squeeze(-1), covariance)
        classes, rank = latent.split.classes, expansion.root.shape[2]
        count = classes.shape[1] + 1
        more = expansion.root.double().mT @ latent.shift.double().unsqueeze(-1)  # as in `site_residual`
        moved = covariance[:, :count, -rank - 1] + (covariance[:, :count, -rank:] @ more).squeeze(-1)
        shift = moved[:, -1:].expand_as(latent.shift).scatter(1, classes, moved[:, :-1])
        return LeftOut(shift, covariance[:, :count, :count])


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
    root, V = _site(expansion, latent)
    K = _prior_covariance(expansion, latent, posterior)
    spread = K @ root
    gap = torch.eye(root.shape[2], dtype=V.dtype, device=V.device) + root.mT @ spread
    values, vectors = torch.linalg.eigh(K - spread @ torch.linalg.solve(gap, spread.mT))
    values = values.clamp(min=torch.finfo(V.dtype).eps * values[:, -1:])
    lengths = values.sqrt()
    inner, turn = torch.linalg.eigh((vectors.mT @ V @ vectors) / (lengths[:, :, None] * lengths[:, None]))
    back = (vectors * lengths[:, None]) @ turn
    found = (back * inner.clamp(max=1)[:, None]) @ back.mT
    if latent.sites is None:
        return replace(latent, covariance=found)
    return replace(latent, sites=replace(latent.sites, covariance=found))


def _site(expansion: Expansion, latent: Latent) -> tuple[Float[Tensor, "N q R"], Float[Tensor, "N q q"]]:
    """S and V; with `Latent.sites`, those of the vector (f_T, g, …, rᵀf, Sᵀf), of which the site sees the last ones."""
    if latent.sites is None:
        return expansion.root.double(), latent.covariance.double()
    V, rank = latent.sites.covariance.double(), expansion.root.shape[2]
    root = torch.eye(V.shape[1], dtype=V.dtype, device=V.device)[:, -rank:]
    return root.expand(len(V), -1, -1), V


def _prior_covariance(expansion: Expansion, latent: Latent, posterior: Posterior) -> Float[Tensor, "N q q"]:
    """J V₀ Jᵀ of each example, or of the vector (f_T, g, …, rᵀf, Sᵀf)."""
    features, prior = expansion.features, posterior.model.prior.precision.double()
    if latent.split is None or latent.sites is None:
        return features.covariance(expansion.inputs, prior).double()
    more = site_rows(expansion)
    rows = torch.cat([functionals(latent.sites.mean, latent.split.classes).to(more.dtype), more], 2)
    size = posterior.chunk(features, expansion.inputs, rows.shape[2])
    places = list(chunks(num_examples(expansion.inputs), size))
    parts = in_parts(expansion.inputs, places)
    return torch.cat([prior.marginal(features.factors(own, rows[part])).double() for part, own in parts])


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
