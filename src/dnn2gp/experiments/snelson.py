"""Fig. 3: bands on Snelson's regression with a gap. DNN2GP, sampled networks and a GP with an RBF kernel."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from torch import Tensor, nn

from dnn2gp.convert import convert
from dnn2gp.datasets import load_snelson
from dnn2gp.datasets.snelson import Regression
from dnn2gp.errors import InputError
from dnn2gp.experiments.result import Claim, Result, plain
from dnn2gp.experiments.small import seeded, train_best
from dnn2gp.likelihoods import GaussianLikelihood
from dnn2gp.monte_carlo import sample_network
from dnn2gp.nets import mlp
from dnn2gp.optimizers import VOGN
from dnn2gp.progress import track
from dnn2gp.structures import Diagonal

OURS, SAMPLED, RBF_GP = "dnn2gp", "dnn", "gp_rbf"


@dataclass(frozen=True)
class SnelsonConfig:
    """One hidden layer of 32 sigmoid units, σ = 0.286; Laplace with δ = 0.1, VI with δ = 1."""

    width: int = 32
    sigma: float = 0.286
    gap: tuple[float, float] = (1.5, 3.0)
    prior_precision: float = 0.1
    restarts: int = 5
    max_iterations: int = 2000
    vi_prior_precision: float = 1.0
    vi_lr: float = 0.1
    vi_precision_lr: float = 0.005
    """1 − the paper's decay of 0.995."""
    vi_momentum: float = 0.9
    vi_samples: int = 10
    vi_initial_precision: float = 50.0
    vi_batch: int = 20
    vi_epochs: int = 16_000
    num_networks: int = 1000
    """Sampled for the bands of DNN-Laplace and DNN-VI."""
    rbf_restarts: int = 20
    extent: tuple[float, float] = (-4.0, 10.0)
    resolution: int = 281
    seed: int = 0

    @staticmethod
    def preset(name: str) -> SnelsonConfig:
        """`paper`, or `smoke`: a little of it."""
        if name == "smoke":
            small = SnelsonConfig(width=4, restarts=1, max_iterations=30, resolution=29, num_networks=5)
            return replace(small, vi_epochs=5, vi_samples=2, rbf_restarts=1)
        if name != "paper":
            raise InputError(f"preset: expected paper or smoke; got {name!r}.")
        return SnelsonConfig()


@dataclass(frozen=True, eq=False)
class _Band:
    """A mean of y and its standard deviation, noise included."""

    mean: np.ndarray
    std: np.ndarray

    @staticmethod
    def of(mean: Tensor, variance: Tensor) -> _Band:
        return _Band(mean[:, 0].double().numpy(), variance[:, 0].double().sqrt().numpy())


def run(config: SnelsonConfig) -> Result:
    """All bands of both panels."""
    begin = time.perf_counter()
    whole = load_snelson()
    data = whole.without(*config.gap)
    x = torch.linspace(*config.extent, config.resolution, dtype=torch.float64)[:, None]
    laplace, relative_gradient = _laplace(config, data, x)
    vi, elbo = _vi(config, data, x)
    rbf = _rbf(config, data, x)
    panels = {"laplace": {**laplace, RBF_GP: rbf}, "vi": {**vi, RBF_GP: rbf}}
    arrays = {
        "inputs": data.inputs[:, 0].numpy(),
        "targets": data.targets[:, 0].numpy(),
        "removed_inputs": whole.inputs[_inside(whole.inputs[:, 0], config.gap)][:, 0].numpy(),
        "removed_targets": whole.targets[_inside(whole.inputs[:, 0], config.gap)][:, 0].numpy(),
        "x": x[:, 0].numpy(),
        "relative_gradient": np.array(relative_gradient),
        "elbo": np.array(elbo),
    }
    for panel, bands in panels.items():
        for name, band in bands.items():
            arrays[f"{panel}_{name}_mean"], arrays[f"{panel}_{name}_std"] = band.mean, band.std
    claims = tuple(claim for panel in panels for claim in _claims(panel, arrays, config))
    return Result("snelson", plain(config), arrays, claims, time.perf_counter() - begin)


def _build(config: SnelsonConfig) -> nn.Module:
    return mlp(1, 1, width=config.width, activation="sigmoid").double()


def _laplace(config: SnelsonConfig, data: Regression, x: Tensor) -> tuple[dict[str, _Band], float]:
    """DNN2GP at a minimum, exact; beside it networks sampled from the diagonal Gaussian there."""
    likelihood = GaussianLikelihood(config.sigma)
    found = train_best(lambda: _build(config), data.inputs, data.targets, likelihood, config)
    network = found.network
    gp = convert(network, (data.inputs, data.targets), likelihood, config.prior_precision)
    diagonal = convert(network, (data.inputs, data.targets), likelihood, config.prior_precision, structure=Diagonal)
    generator = torch.Generator().manual_seed(config.seed)
    sampled = sample_network(diagonal, x, config.num_networks, generator=generator)
    ours = gp.predict(x)
    bands = {
        OURS: _Band.of(ours.mean, ours.variance),
        SAMPLED: _Band.of(sampled.mean, sampled.epistemic + sampled.aleatoric),
    }
    return bands, found.relative_gradient


def _vi(config: SnelsonConfig, data: Regression, x: Tensor) -> tuple[dict[str, _Band], float]:
    """The GP of the last iteration of VOGN; beside it networks sampled from q."""
    optimizer = VOGN(
        seeded(lambda: _build(config), config.seed),
        GaussianLikelihood(config.sigma),
        len(data.inputs),
        lr=config.vi_lr,
        precision_lr=config.vi_precision_lr,
        prior_precision=config.vi_prior_precision,
        initial_precision=config.vi_initial_precision,
        momentum=config.vi_momentum,
        num_samples=config.vi_samples,
        seed=config.seed,
    )
    generator = torch.Generator().manual_seed(config.seed)
    for _ in track(range(config.vi_epochs), "Snelson: VOGN", total=config.vi_epochs):
        for batch in torch.randperm(len(data.inputs), generator=generator).split(config.vi_batch):
            optimizer.step(data.inputs[batch], data.targets[batch])
    pair = (data.inputs, data.targets)
    ours = optimizer.gaussian_process(pair, generator=generator).predict(x)
    sampled = optimizer.sample_network(x, config.num_networks, generator)
    bands = {
        OURS: _Band.of(ours.mean, ours.variance),
        SAMPLED: _Band.of(sampled.mean, sampled.epistemic + sampled.aleatoric),
    }
    return bands, optimizer.elbo(pair, 100, generator)


def _rbf(config: SnelsonConfig, data: Regression, x: Tensor) -> _Band:
    """Constant × RBF with noise σ², its two hyperparameters by the evidence."""
    model = GaussianProcessRegressor(
        ConstantKernel() * RBF(),
        alpha=config.sigma**2,
        n_restarts_optimizer=config.rbf_restarts,
        random_state=config.seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(data.inputs.numpy(), data.targets[:, 0].numpy())
    mean, std = (np.asarray(part) for part in model.predict(x.numpy(), return_std=True)[:2])
    return _Band(mean, np.sqrt(std**2 + config.sigma**2))


def _inside(x: Float[Tensor, " N"], gap: tuple[float, float]) -> Tensor:
    return (x >= gap[0]) & (x <= gap[1])


def _claims(panel: str, arrays: dict[str, np.ndarray], config: SnelsonConfig) -> list[Claim]:
    """Wherever data are missing, DNN2GP's band is the widest."""
    x, inputs = arrays["x"], arrays["inputs"]
    places = {
        "in the gap": (x >= config.gap[0]) & (x <= config.gap[1]),
        "outside the data": (x < inputs.min()) | (x > inputs.max()),
    }
    found = []
    for words, where in places.items():
        ours = arrays[f"{panel}_{OURS}_std"][where]
        shares = {name: float((ours > arrays[f"{panel}_{name}_std"][where]).mean()) for name in (SAMPLED, RBF_GP)}
        text = f"wider than DNN's at {shares[SAMPLED]:.0%} of x, than GP-RBF's at {shares[RBF_GP]:.0%}"
        holds = min(shares.values()) == 1.0
        what = f"{panel.upper() if panel == 'vi' else 'Laplace'}: DNN2GP's band is the widest {words}"
        found.append(Claim(what, "Fig. 3: larger wherever data are missing", text, holds))
    return found
