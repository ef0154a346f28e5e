"""One of several processes that share the examples: `python shared_examples.py rank size port folder`.

It writes its answers to the folder, for a test that compares them with those of a single process, and then the errors
that it raises for mistakes. In the end, the last process kills itself while the others compute.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

import dnn2gp
import dnn2gp.network.streamed as streamed
from dnn2gp import (
    OGN,
    VOGGN,
    VOGN,
    BlockDiagonal,
    CategoricalLikelihood,
    Dense,
    Diagonal,
    FunctionSpace,
    GaussianLikelihood,
    GaussNewtonStep,
    Iterative,
    Kronecker,
    LinearisedMode,
    NetworkOutput,
    Processes,
    WeightSpace,
)
from dnn2gp.inference import Posterior
from dnn2gp.network.inputs import OnDemand
from dnn2gp.support.errors import InputError, ProcessError
from dnn2gp.weights import Expansion

N, FEATURES = 23, 3
Answers = dict[str, Tensor]


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, classes and real targets."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, FEATURES, dtype=torch.float64, generator=generator)
    noise = torch.randn(N, 2, dtype=torch.float64, generator=generator)
    return x, (x.sum(1) > 0).long() + (x[:, 0] > 0.4).long(), x[:, :2].sin() + 0.1 * noise


def network(outputs: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(outputs)
        return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


class Convolution(nn.Module):
    """A convolution, whose weights are used at several positions, and a lookup of one of two biases."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.bias = nn.Conv1d(1, 2, 2), nn.Embedding(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        kind = (x[:, 0] > 0).long()
        return self.convolution(x[:, None]).tanh().sum(2) + self.bias(kind)


def convolution() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Convolution().double()


def test_inputs() -> Tensor:
    return torch.linspace(-2, 2, 5 * FEATURES, dtype=torch.float64).reshape(5, FEATURES)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def of_gp(gp: dnn2gp.GaussianProcess) -> Answers:
    """All answers of a GP: those for new inputs, and those about its training data."""
    prediction, calibration = gp.predict(test_inputs()), gp.calibration
    found = {
        "mean": prediction.latent_mean,
        "covariance": prediction.latent_covariance,
        "variances": gp.inference.weight_variances(),
        "evidence": torch.tensor(float(gp.evidence()), dtype=torch.float64),
        "prior": gp.prior.precision.diagonal(),
        "calibration": torch.tensor([calibration.scale, calibration.temperature, calibration.scores]).double(),
        "samples": gp.inference.sample_weights(2, seeded()),
    }
    if gp.model.expansion.targets is not None:
        left = gp.leave_one_out()
        found |= {"left out": left.latent_mean, "log prob": left.log_prob}
    return found


def of_diagnosis(gp: dnn2gp.GaussianProcess) -> Answers:
    found = dnn2gp.diagnose(gp)
    assert found.left_out is not None
    assert found.network_left_out is not None
    numbers = found.left_out.nll, found.network_left_out.nll, found.moved, found.deviation, found.uninformative
    return {"diagnosis": torch.tensor([*numbers, found.num_examples], dtype=torch.float64)}


def classifiers(processes: Processes | None) -> dict[str, Answers]:
    x, y, _ = data()
    likelihood = CategoricalLikelihood()
    settings = {
        "default": {"inference": WeightSpace()},
        "mode": {"mean": LinearisedMode(), "prior_precision": 1.0, "structure": Dense()},
        "iterative": {
            "mean": NetworkOutput(sites_at_mode=True),
            "inference": Iterative(rank=12, samples=20),
            "prior_precision": 0.3,
        },
        "kronecker": {"mean": NetworkOutput(), "structure": Kronecker()},
        "diagonal": {"mean": GaussNewtonStep(), "structure": Diagonal()},
        "blocks": {"mean": LinearisedMode(), "structure": BlockDiagonal(), "prior_precision": 1.0},
        "fisher": {"structure": Dense(), "expansion": Expansion.empirical_fisher},
        "validation": {"structure": Dense(), "prior_precision": 1.0, "validation": (test_inputs(), y[:5])},
    }
    if processes is not None and processes.size > 2:
        settings = {name: settings[name] for name in ("default", "iterative", "kronecker")}
    found = {}
    for name, each in settings.items():
        gp = dnn2gp.convert(network(3), (x, y), likelihood, processes=processes, **each)
        found[name] = of_gp(gp) if name != "fisher" else {"mean": gp.predict(test_inputs()).latent_covariance}
        if name == "mode":
            found[name] |= of_diagnosis(gp)
            found[name]["outliers"] = torch.tensor(gp.outlier_threshold(), dtype=torch.float64)
            found[name]["calibrated"] = torch.tensor(gp.calibrated().calibration.scale, dtype=torch.float64)
    return found


def regressions(processes: Processes | None) -> dict[str, Answers]:
    x, _, y = data()
    settings = {
        "regression": {"inference": WeightSpace()},
        "iterative regression": {"inference": Iterative(rank=12, samples=20)},
        "kronecker regression": {"structure": Kronecker(), "mean": LinearisedMode()},
        "around the network": {"structure": Dense(), "mean": NetworkOutput()},
    }
    found = {}
    for name, each in settings.items():
        gp = dnn2gp.convert(network(2), (x, y), GaussianLikelihood(), processes=processes, **each)
        found[name] = of_gp(gp)
        if name == "regression":
            slope, curve = gp.evidence_gradient(), gp.evidence_function(per_layer=True, per_output=True)
            found[name] |= of_diagnosis(gp) | {"slope": slope.prior_precision, "curve": curve(2.0, 1.5).detach()}
    noise = torch.linspace(0.1, 0.3, N, dtype=torch.float64)[:, None].expand(N, 2)
    own = dnn2gp.convert(
        network(2), (x, y), GaussianLikelihood(noise), 1.0, inference=WeightSpace(), processes=processes
    )
    small = GaussianLikelihood(1e-5)
    exact = dnn2gp.convert(network(2), (x, y), small, 1.0, inference=WeightSpace(), processes=processes)
    flat = x * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)  # only the prior knows the weights of the last input
    linear = nn.Linear(FEATURES, 2).double()
    torch.nn.init.ones_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    unseen = dnn2gp.convert(linear, (flat, y), small, 1.0, inference=WeightSpace(), processes=processes)
    layered = dnn2gp.convert(convolution(), (x, y), GaussianLikelihood(0.3), structure=Kronecker(), processes=processes)
    slope = exact.evidence_gradient().sigma
    assert slope is not None
    found["slope in σ"] = {"slope": slope}
    return found | {
        "own noise": of_gp(own),
        "small noise": of_gp(exact),
        "more rows than weights": of_gp(unseen),
        "convolution": of_gp(layered),
    }


def own_shares(processes: Processes | None) -> dict[str, Answers]:
    """Every process passes only its own examples; process 0 has two of them."""
    x, _, y = data()
    part = slice(None)
    if processes is not None:
        processes = Processes(split=False)
        cuts = [0, 2, N] if processes.size == 2 else [0, 2, 5, N]
        part = slice(cuts[processes.rank], cuts[processes.rank + 1])
    settings = {"structure": Dense(), "processes": processes}
    return {"own shares": of_gp(dnn2gp.convert(network(2), (x[part], y[part]), GaussianLikelihood(), **settings))}


def on_demand(processes: Processes | None, folder: Path | None = None) -> dict[str, Answers]:
    """A Dataset of which each process reads its share on demand; a single process has it in memory."""
    x, y, _ = data()
    settings = {"mean": LinearisedMode(), "structure": Dense(), "processes": processes}
    kept = streamed._SMALL, streamed._MOST, streamed._KEPT
    try:
        if processes is not None:
            streamed._SMALL, streamed._MOST, streamed._KEPT = 0.0, 6, 3
        examples = [(*pair,) for pair in zip(x, y, strict=True)]
        gp = dnn2gp.convert(network(3), Listed(examples), CategoricalLikelihood(), 1.0, **settings)
        assert isinstance(gp.model.expansion.inputs, OnDemand) == (processes is not None)
        if folder is not None:
            dnn2gp.save(gp, folder / "on_demand.safetensors")
        return {"on demand": of_gp(gp) | of_diagnosis(gp)}
    finally:
        streamed._SMALL, streamed._MOST, streamed._KEPT = kept


def chunks_of_any_length(processes: Processes | None) -> dict[str, Answers]:
    """A validation set that each process would predict in chunks of another length, in float32."""
    x, y, _ = data()
    own = [x.float().repeat(1, 20) + torch.arange(60) / 10, y]
    module = nn.Linear(20 * FEATURES, 3)
    torch.nn.init.normal_(module.weight, std=0.02, generator=seeded())
    torch.nn.init.zeros_(module.bias)
    usual = Posterior.chunk
    Posterior.chunk = lambda self, features, inputs: 5 + 3 * (0 if processes is None else processes.rank)
    try:
        found = {}
        for name, count in {"validation in chunks": N, "one validation example": 1}.items():
            settings = {"structure": Diagonal(), "validation": (own[0][:count], y[:count]), "processes": processes}
            gp = dnn2gp.convert(module, (own[0], y), CategoricalLikelihood(), 1.0, **settings)
            known = gp.calibration
            found[name] = {"calibration": torch.tensor([known.scale, known.temperature], dtype=torch.float64)}
        return found
    finally:
        Posterior.chunk = usual


class Listed(Dataset):
    """A list of examples as a Dataset."""

    def __init__(self, examples: list) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple:
        return self.examples[index]


def steps(processes: Processes | None) -> dict[str, Answers]:
    x, y, _ = data()
    found = {}
    for kind in (VOGN, OGN, VOGGN):
        module = network(3)
        optimizer = kind(module, CategoricalLikelihood(), N, steps=3, processes=processes)
        losses = [optimizer.step(x[part], y[part]).loss for part in (slice(0, 7), slice(7, 14), slice(14, N))]
        state, own = optimizer.snapshot(), optimizer.gaussian_process((x[:5], y[:5]), generator=seeded())
        found[kind.__name__] = {
            "mean": state.mean,
            "precision": state.precision.diagonal(),
            "losses": torch.tensor(losses, dtype=torch.float64),
            "gp": own.predict(test_inputs()).latent_covariance,
        }
    return found


def answers(processes: Processes | None, folder: Path | None = None) -> dict[str, Answers]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            **classifiers(processes),
            **regressions(processes),
            **own_shares(processes),
            **on_demand(processes, folder),
            **chunks_of_any_length(processes),
            **steps(processes),
        }


def saved(processes: Processes, folder: Path) -> None:
    """The classifier at the mode, in one file."""
    x, y, _ = data()
    settings = {"mean": LinearisedMode(), "structure": Dense(), "processes": processes}
    dnn2gp.save(dnn2gp.convert(network(3), (x, y), CategoricalLikelihood(), 1.0, **settings), folder / "gp.safetensors")


def mistakes(processes: Processes) -> dict[str, str]:
    """The error that this process raises for each mistake: its type and its message."""
    x, _, y = data()
    own, other = network(2), network(2)
    rank, likelihood = processes.rank, GaussianLikelihood(0.3)
    if rank == 1:
        with torch.no_grad():
            other[0].weight[0, 0] += 1e-9
    broken = torch.full_like(x, torch.nan) if rank == 1 else x
    gp = dnn2gp.convert(own, (x, y), likelihood, 1.0, processes=processes)
    batchnorm = nn.Sequential(nn.Linear(FEATURES, 2), nn.BatchNorm1d(2)).double()
    torch.nn.init.ones_(batchnorm[0].weight)
    torch.nn.init.ones_(batchnorm[0].bias)

    def converted(module: nn.Module, inputs: Tensor, targets: Tensor, delta: float = 1.0, **settings: object) -> object:
        settings = {"processes": processes, **settings}
        return dnn2gp.convert(module, (inputs, targets), likelihood, delta, **settings)  # pyright: ignore

    tried = {
        "weights": lambda: converted(other, x, y),
        "examples": lambda: converted(own, x[rank:], y[rank:]),
        "delta": lambda: converted(own, x, y, 1.0 + rank),
        "function space": lambda: converted(own, x, y, inference=FunctionSpace()),
        "few examples": lambda: converted(own, x[:1], y[:1]),
        "not finite": lambda: converted(own, broken, y, processes=Processes(split=False)),
        "condition": lambda: gp.condition((x, y)),
        "details": lambda: dnn2gp.diagnose(gp, details=True),
        "batch norm": lambda: VOGN(batchnorm, likelihood, N, processes=processes).step(x, y),
        "seed": lambda: VOGN(own, likelihood, N, seed=rank, processes=processes),
        "validation": lambda: converted(own, x, y, validation=(x[rank:], y[rank:])),
        "step": lambda: dnn2gp.gp.convert_step(*_step(own, likelihood, processes)),
        "places": lambda: gp.evidence() if rank == 0 else gp.leave_one_out(),
    }
    found = {}
    for name, call in tried.items():
        try:
            call()
            found[name] = "nothing"
        except (InputError, ProcessError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def _step(module: nn.Module, likelihood: GaussianLikelihood, processes: Processes) -> tuple:
    optimizer = VOGN(module, likelihood, N, processes=processes)
    x, _, y = data()
    return optimizer.snapshot(), optimizer.step(x, y)


def slow(processes: Processes) -> str:
    """The error of process 0 when another process does not arrive in time."""
    others = dist.new_group(list(range(processes.size)))
    team = Processes(others, timeout=0.5)
    if processes.rank == 0:
        try:
            team.total(1)
        except ProcessError as error:
            return str(error)
    else:
        time.sleep(1.5)
    return ""


def killed(processes: Processes) -> tuple[str, float]:
    """The error of the other processes when the last one is killed, and the seconds until they raise it."""
    x, _, y = data()
    if processes.rank == processes.size - 1:
        dnn2gp.convert(network(2), (x, y), GaussianLikelihood(0.3), 1.0, processes=processes)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.perf_counter()
    try:
        while True:
            dnn2gp.convert(network(2), (x, y), GaussianLikelihood(0.3), 1.0, processes=processes)
    except ProcessError as error:
        return str(error), time.perf_counter() - begin


def main(rank: int, size: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    processes = Processes()
    found: dict[str, object] = {"answers": answers(processes, folder)}
    traffic = processes.traffic
    found["traffic"] = traffic.sums, traffic.exchanges, traffic.bytes, traffic.seconds
    saved(processes, folder)
    if size == 2:
        found["mistakes"], found["slow"] = mistakes(processes), slow(processes)
    torch.save(found, folder / f"{rank}.pt")
    words = killed(processes)
    torch.save(words, folder / f"{rank}.killed.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
