"""The GP of a network by explicit matrices in float64, for every structure. Imports nothing of dnn2gp."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reference import brute_force
from reference import likelihoods as oracle


def layers_of(names: list[str]) -> list[list[int]]:
    """Positions of the weight tensors that each module owns, in the order of the first of them."""
    groups: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        groups.setdefault(name.rpartition(".")[0], []).append(position)
    return list(groups.values())


def trainable_names(module: nn.Module) -> list[str]:
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


@dataclass(frozen=True)
class Problem:
    """Everything that the formulas need: N training and M test inputs, K outputs, P weights."""

    J: Tensor
    f: Tensor
    r: Tensor
    Lam: Tensor
    J_test: Tensor
    f_test: Tensor
    w: Tensor
    delta: Tensor
    layers: list[Tensor]
    """The positions in w of the weights of each layer."""
    log_likelihood: float

    @property
    def gradients(self) -> Tensor:
        """∇ℓᵢ = Jᵢᵀ rᵢ, N × P."""
        return torch.einsum("nkp,nk->np", self.J, self.r)

    @property
    def gradient(self) -> Tensor:
        """Σᵢ ∇ℓᵢ + δ w."""
        return self.gradients.sum(0) + self.delta * self.w

    def ggn(self, *, empirical: bool = False) -> Tensor:
        """Σᵢ JᵢᵀΛᵢJᵢ, or Σᵢ ∇ℓᵢ∇ℓᵢᵀ."""
        if empirical:
            return self.gradients.T @ self.gradients
        return torch.einsum("nkp,nkl,nlq->pq", self.J, self.Lam, self.J)


def problem(
    module: nn.Module, inputs, targets: Tensor, test_inputs, log_prob: oracle.LogProb, delta: Tensor
) -> Problem:
    """Outputs, Jacobians and derivatives of the loss, one backward pass for each example and output."""
    f = brute_force.outputs(module, inputs)
    sizes = [weight.numel() for weight in brute_force.trainable(module)]
    places = torch.arange(sum(sizes)).split(sizes)
    layers = [torch.cat([places[position] for position in own]) for own in layers_of(trainable_names(module))]
    return Problem(
        J=brute_force.jacobian(module, inputs),
        f=f,
        r=oracle.gradient(log_prob, f, targets),
        Lam=oracle.hessian(log_prob, f, targets),
        J_test=brute_force.jacobian(module, test_inputs),
        f_test=brute_force.outputs(module, test_inputs),
        w=brute_force.flat_weights(module),
        delta=delta,
        layers=layers,
        log_likelihood=float(log_prob(f, targets).sum()),
    )


@dataclass(frozen=True)
class Answers:
    """What a GP says, by the closed formulas."""

    kernel: Tensor
    latent_mean: Tensor
    latent_covariance: Tensor
    covariance: Tensor
    mean: Tensor
    epistemic: Tensor
    log_likelihood: float
    prior_penalty: float
    complexity: float
    correction: float


def structured(matrix: Tensor, structure: str, layers: list[Tensor]) -> Tensor:
    """The entries of a precision that a structure keeps."""
    if structure == "Dense":
        return matrix
    if structure == "Diagonal":
        return torch.diag(matrix.diagonal())
    assert structure == "BlockDiagonal"
    kept = torch.zeros_like(matrix)
    for own in layers:
        kept[own[:, None], own] = matrix[own[:, None], own]
    return kept


def answers(given: Problem, precision: Tensor, mean: Callable[[Tensor], Tensor], *, exact: bool) -> Answers:
    """The formulas of the GP with this posterior precision; if it is not exact, the mean stays at the weights."""
    covariance = torch.linalg.inv(precision)
    step = covariance @ given.gradient if exact else torch.zeros_like(given.w)
    shift = -given.J_test @ step
    latent = given.J_test @ covariance @ given.J_test.mT
    slope = oracle.jacobian(mean, given.f_test)
    return Answers(
        kernel=torch.einsum("nkp,p,mlp->nkml", given.J_test, 1 / given.delta, given.J),
        latent_mean=given.f_test + shift,
        latent_covariance=latent,
        covariance=torch.einsum("nkp,pq,mlq->nkml", given.J_test, covariance, given.J_test),
        mean=mean(given.f_test) + (slope @ shift.unsqueeze(-1)).squeeze(-1),
        epistemic=(slope @ latent @ slope.mT).diagonal(dim1=1, dim2=2),
        log_likelihood=given.log_likelihood,
        prior_penalty=float(0.5 * (given.delta * given.w.square()).sum()),
        complexity=float(0.5 * (torch.logdet(precision) - given.delta.log().sum())),
        correction=float(0.5 * given.gradient @ step),
    )


# Kronecker factors ----------------------------------------------------------------------------------------------------


def kronecker(module: nn.Module, inputs, given: Problem) -> Tensor | None:
    """⊕ A ⊗ G + δ for Linear and Conv2d layers that are called once; None if other weights are trained.

    A = Σ a aᵀ over examples and positions, with a 1 for the bias; G = Σ g gᵀ / (N L), g the gradient of Sᵀf with
    respect to the layer's output, S a root of Λ. (G does not depend on which root, as Σ_r g_r g_rᵀ = Bᵀ Λ B.)
    """
    owners = _owners(module)
    if owners is None:
        return None
    found: list[Tensor] = []
    for layer, own in zip(owners, given.layers, strict=True):
        factors = _factors(module, layer, inputs, given.Lam)
        if factors is None:
            return None
        found.append(_arranged(*factors, own, given.delta))
    precision = torch.zeros(len(given.w), len(given.w), dtype=torch.float64)
    for matrix, own in zip(found, given.layers, strict=True):
        precision[own[:, None], own] = matrix
    return precision


def _owners(module: nn.Module) -> list[str] | None:
    """The names of the layers that own the trained weights, if each is a plain Linear or Conv2d, wholly trained."""
    names = trainable_names(module)
    owners = [names[own[0]].rpartition(".")[0] for own in layers_of(names)]
    for owner in owners:
        layer = module.get_submodule(owner)
        plain = type(layer) is nn.Linear or (
            type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros" and layer.padding != "same"
        )
        if not plain or not all(parameter.requires_grad for parameter in layer.parameters()):
            return None
    return owners


def _factors(module: nn.Module, name: str, inputs, Lam: Tensor) -> tuple[Tensor, Tensor, bool] | None:
    """A, G, and whether there is a bias; None if the layer is not called exactly once."""
    module = copy.deepcopy(module).eval()
    layer, calls = module.get_submodule(name), []

    def keep(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        calls.append((args[0].detach().clone(), output))
        return output.clone()  # which may be changed in place

    layer.register_forward_hook(keep)
    A, G, pairs = torch.zeros(()), torch.zeros(()), 0
    for index in range(brute_force.length(inputs)):
        calls.clear()
        f = brute_force.call(module, brute_force.row(inputs, index))[0]
        if len(calls) != 1:
            return None
        a, z = calls[0]
        rows = [torch.autograd.grad(fk, z, retain_graph=True, allow_unused=True)[0] for fk in f]
        patches = _patches(layer, a)
        A = A + patches.T @ patches
        B = torch.stack([torch.zeros_like(z) if row is None else row for row in rows])
        B = B[:, 0].flatten(2) if isinstance(layer, nn.Conv2d) else B.reshape(len(f), -1, z.shape[-1]).mT
        G = G + torch.einsum("kol,kj,jml->om", B, Lam[index], B)
        pairs += len(patches)
    return A, G / pairs, layer.bias is not None


def _patches(layer: nn.Module, a: Tensor) -> Tensor:
    """The inputs of a layer at every position, with a 1 for the bias."""
    if isinstance(layer, nn.Conv2d):
        options = {name: getattr(layer, name) for name in ("dilation", "padding", "stride")}
        columns = nn.functional.unfold(a, layer.kernel_size, **options)[0].T
    else:
        columns = a.reshape(-1, a.shape[-1])
    ones = columns.new_ones(len(columns), 1)
    return columns if layer.bias is None else torch.cat([columns, ones], 1)


def _arranged(A: Tensor, G: Tensor, bias: bool, own: Tensor, delta: Tensor) -> Tensor:
    """G ⊗ A with the column of the bias behind the weights, as they lie in the flat vector, plus δ."""
    grid = torch.arange(len(G) * len(A)).view(len(G), len(A))
    order = torch.cat([grid[:, :-1].flatten(), grid[:, -1]]) if bias else grid.flatten()
    return torch.kron(G, A)[order[:, None], order] + torch.diag(delta[own])
