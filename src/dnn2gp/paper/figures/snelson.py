"""Fig. 3: bands on Snelson's regression with a gap. DNN2GP, sampled networks and a GP with an RBF kernel."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from torch import Tensor, nn

from dnn2gp.gp.convert import convert
from dnn2gp.gp.network_samples import sample_network
from dnn2gp.likelihoods import GaussianLikelihood
from dnn2gp.network.mlp import mlp
from dnn2gp.paper.datasets import load_snelson
from dnn2gp.paper.datasets.snelson import SnelsonData
from dnn2gp.paper.figure_result import FigureResult, check_preset, plain
from dnn2gp.paper.small import seeded
from dnn2gp.paper.vogn_ensemble import VognSettings, elbo, vogn
from dnn2gp.plots.report.claim import Claim
from dnn2gp.support.errors import NotAMinimumWarning
from dnn2gp.tune.ensemble import Ensemble, initial_weights, write_weights
from dnn2gp.tune.jobs import one_thread
from dnn2gp.tune.minimise import minimise
from dnn2gp.weights.structures import Diagonal

OURS, SAMPLED, RBF_GP = "dnn2gp", "dnn", "gp_rbf"


@dataclass(frozen=True)
class SnelsonConfig:
    """One hidden layer of 32 sigmoid units, σ = 0.286; Laplace with δ = 0.1, VI with δ = 0.05."""

    width: int = 32
    sigma: float = 0.286
    gap: tuple[float, float] = (1.5, 3.0)
    prior_precision: float = 0.1
    restarts: int = 5
    max_iterations: int = 2000
    vi_prior_precision: float = 0.05
    """The paper says 1, but its batches of 20 are weighed 20 times too much, which makes it a twentieth."""
    vi_gp_prior_precision: float = 0.1
    """δ of the GP of the VI panel: the paper takes that of the other panel."""
    vi: VognSettings = field(default_factory=lambda: VognSettings(8000, 0.05, 0.005, 10, 1000.0))
    """With the paper's rate of the precision (1 − decay) and samples, from a minimum; a step sees all data."""
    vi_samples: int = 5
    """Samples of q whose GPs are told of; the first is drawn."""
    num_networks: int = 1000
    """Sampled for the bands of DNN-Laplace and DNN-VI."""
    rbf_restarts: int = 20
    extent: tuple[float, float] = (-4.0, 10.0)
    resolution: int = 281
    seed: int = 0

    @staticmethod
    def preset(name: str) -> SnelsonConfig:
        """`paper`, or `smoke`: a little of it."""
        if check_preset(name) == "smoke":
            small = SnelsonConfig(width=4, restarts=2, max_iterations=30, resolution=29, num_networks=5, vi_samples=2)
            return replace(small, vi=VognSettings(20, 0.05, 0.005, 2, 1000.0), rbf_restarts=1)
        return SnelsonConfig()


@dataclass(frozen=True, eq=False)
class _BandOnGrid:
    """A mean of y and its standard deviation, noise included."""

    mean: np.ndarray
    std: np.ndarray

    @staticmethod
    def of(mean: Tensor, variance: Tensor) -> _BandOnGrid:
        return _BandOnGrid(mean[:, 0].double().numpy(), variance[:, 0].double().sqrt().numpy())


_Bands: TypeAlias = dict[str, _BandOnGrid]
_Arrays: TypeAlias = dict[str, np.ndarray]


def run(config: SnelsonConfig) -> FigureResult:
    """All bands of both panels."""
    begin = time.perf_counter()
    whole = load_snelson()
    data = whole.without(*config.gap)
    x = torch.linspace(*config.extent, config.resolution, dtype=torch.float64)[:, None]
    laplace, minima, laplace_weights = _laplace(config, data, x)
    vi, more, vi_weights = _vi(config, data, x)
    rbf = _rbf(config, data, x)
    panels = {"laplace": {**laplace, RBF_GP: rbf}, "vi": {**vi, RBF_GP: rbf}}
    arrays = {
        "inputs": data.inputs[:, 0].numpy(),
        "targets": data.targets[:, 0].numpy(),
        "removed_inputs": whole.inputs[_inside(whole.inputs[:, 0], config.gap)][:, 0].numpy(),
        "removed_targets": whole.targets[_inside(whole.inputs[:, 0], config.gap)][:, 0].numpy(),
        "x": x[:, 0].numpy(),
        **minima,
        **more,
    }
    for panel, bands in panels.items():
        for name, band in bands.items():
            arrays[f"{panel}_{name}_mean"], arrays[f"{panel}_{name}_std"] = band.mean, band.std
    seconds, weights = time.perf_counter() - begin, {**laplace_weights, **vi_weights}
    return FigureResult("snelson", plain(config), arrays, claims(arrays, config), seconds, weights=weights)


def claims(arrays: dict[str, np.ndarray], config: SnelsonConfig) -> tuple[Claim, ...]:
    """Of both panels."""
    return tuple(claim for panel in ("laplace", "vi") for claim in _claims(panel, arrays, config))


def _build(config: SnelsonConfig) -> nn.Module:
    return mlp(1, 1, width=config.width, activation="sigmoid").double()


def _laplace(config: SnelsonConfig, data: SnelsonData, x: Tensor) -> tuple[_Bands, _Arrays, _Arrays]:
    """DNN2GP at the best minimum, exact; networks sampled from the diagonal Gaussian there; minima; their weights."""
    likelihood, pair = GaussianLikelihood(config.sigma), (data.inputs, data.targets)
    delta = torch.full((config.restarts,), config.prior_precision, dtype=torch.float64)
    network = seeded(lambda: _build(config), config.seed)
    ensemble = Ensemble(network, data.inputs[None], data.targets[None], likelihood, delta)
    first = initial_weights(lambda: _build(config), [1000 * config.seed + place for place in range(config.restarts)])
    found = minimise(ensemble, first, max_iterations=config.max_iterations)
    variances = ensemble.variances(found.weights, ensemble.curvature(found.weights), x[None])
    write_weights(network, found.weights[int(found.loss.argmin())])
    ours = convert(network, pair, likelihood, config.prior_precision).predict(x)
    diagonal = convert(network, pair, likelihood, config.prior_precision, structure=Diagonal())
    generator = torch.Generator().manual_seed(config.seed)
    sampled = sample_network(diagonal, x, config.num_networks, generator=generator)
    bands = {
        OURS: _BandOnGrid.of(ours.mean, ours.variance),
        SAMPLED: _BandOnGrid.of(sampled.mean, sampled.epistemic + sampled.aleatoric),
    }
    minima = {
        "minima_loss": found.loss.numpy(),
        "minima_relative_gradient": found.relative_gradient.numpy(),
        "minima_std": (variances[..., 0] + config.sigma**2).sqrt().numpy(),
    }
    return bands, minima, {"minima": found.weights.numpy()}


def _vi(config: SnelsonConfig, data: SnelsonData, x: Tensor) -> tuple[_Bands, _Arrays, _Arrays]:
    """The GP of the linear model at one sample of q, with the plain prior; networks sampled from q; q itself."""
    likelihood, pair = GaussianLikelihood(config.sigma), (data.inputs, data.targets)
    delta = torch.tensor([config.vi_prior_precision], dtype=torch.float64)
    network, generator = seeded(lambda: _build(config), config.seed), torch.Generator().manual_seed(config.seed)
    inputs, targets = data.inputs[None], data.targets[None]
    ensemble = Ensemble(network, inputs, targets, likelihood, delta)
    first = initial_weights(lambda: _build(config), [1000 * config.seed])
    first = minimise(ensemble, first, max_iterations=config.max_iterations).weights
    with one_thread():
        q = vogn(network, inputs, targets, delta, first, config.vi, generator, sigma=config.sigma, dtype=torch.float64)
    networks = q.sample(config.num_networks, generator).unbind(1)
    with torch.no_grad():
        outputs = torch.stack([ensemble.outputs(weights, x[None])[0] for weights in networks])
        own = torch.stack([ensemble.outputs(weights, inputs) for weights in networks])
    write_weights(network, networks[0][0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotAMinimumWarning)  # a sample of q is none
        ours = convert(network, pair, likelihood, config.vi_gp_prior_precision).predict(x)
        same = convert(network, pair, likelihood, config.vi_prior_precision).predict(x)
        others = []
        for weights in networks[: config.vi_samples]:
            write_weights(network, weights[0])
            others.append(convert(network, pair, likelihood, config.vi_gp_prior_precision).predict(x).variance[:, 0])
    bands = {
        OURS: _BandOnGrid.of(ours.mean, ours.variance),
        SAMPLED: _BandOnGrid.of(outputs.mean(0), outputs.var(0) + config.sigma**2),
    }
    found = {
        "vi_elbo": elbo(q, own, targets, delta, config.sigma).numpy(),
        "vi_error": (own.mean(0) - targets).square().mean().sqrt().numpy(),
        "vi_samples_std": torch.stack(others).sqrt().numpy(),
        "vi_same_prior_std": same.variance[:, 0].sqrt().numpy(),
    }
    return bands, found, {"vi_mean": q.mean[0].numpy(), "vi_precision": q.precision[0].numpy()}


def _rbf(config: SnelsonConfig, data: SnelsonData, x: Tensor) -> _BandOnGrid:
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
    return _BandOnGrid(mean, np.sqrt(std**2 + config.sigma**2))


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
        wider = {name: ours > arrays[f"{panel}_{name}_std"][where] for name in (SAMPLED, RBF_GP)}
        shares = {name: float(own.mean()) for name, own in wider.items()}
        both = float((wider[SAMPLED] & wider[RBF_GP]).mean())
        text = f"wider than DNN's at {shares[SAMPLED]:.0%} of x, than GP-RBF's at {shares[RBF_GP]:.0%}, than both at "
        text += f"{both:.0%}"
        narrow = where & (arrays[f"{panel}_{OURS}_std"] <= arrays[f"{panel}_{RBF_GP}_std"])
        holds = min(shares.values()) == 1.0
        what = f"{panel.upper() if panel == 'vi' else 'Laplace'}: DNN2GP's band is the widest {words}"
        if narrow.any():
            text += f". Narrower than GP-RBF's at x = {_intervals(x, narrow)}"
        why = "" if holds else _why(panel, arrays, config, where)
        found.append(Claim(what, "Fig. 3: larger wherever data are missing", text + why, holds))
    return found


def _why(panel: str, arrays: dict[str, np.ndarray], config: SnelsonConfig, where: np.ndarray) -> str:
    """What other choices give: other minima, other samples of q, another δ."""
    if panel == "vi":
        wider = arrays["vi_samples_std"][:, where] > arrays[f"vi_{RBF_GP}_std"][where]
        samples = ", ".join(f"{share:.0%}" for share in wider.mean(1))
        same = arrays["vi_same_prior_std"][where]
        shares = [float((same > arrays[f"vi_{name}_std"][where]).mean()) for name in (SAMPLED, RBF_GP)]
        words = (
            f". The GPs of {len(wider)} samples of q, of which the first is drawn, are wider than GP-RBF at {samples}"
        )
        same_words = f"wider than DNN's at {shares[0]:.0%}, than GP-RBF's at {shares[1]:.0%}"
        return f"{words}. With the training's δ = {config.vi_prior_precision:g}: {same_words}"
    wider = arrays["minima_std"][:, where] > arrays[f"{panel}_{RBF_GP}_std"][where]
    shares = ", ".join(f"{share:.0%}" for share in wider.mean(1)[np.argsort(arrays["minima_loss"])])
    return f". At the {len(wider)} minima found, the best first, wider than GP-RBF's at {shares}"


def _intervals(x: np.ndarray, chosen: np.ndarray) -> str:
    """The runs of neighbours that are chosen, by their ends: "1.5 … 2.5, 6 … 7"."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(int), [0]])))
    return ", ".join(f"{x[first]:.3g} … {x[last - 1]:.3g}" for first, last in zip(edges[::2], edges[1::2], strict=True))
