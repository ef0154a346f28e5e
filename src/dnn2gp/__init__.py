"""dnn2gp: neural networks as Gaussian processes.

    gp = convert(network, data, likelihood)  # δ by the evidence; or prior_precision=1.0
    prediction = gp.predict(inputs)          # .probabilities, .interval(0.9), .mean, .aleatoric, .epistemic

The names below and the rooms of the package are imported when they are first used, so that `import dnn2gp` and
`dnn2gp --help` do not wait for torch.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dnn2gp import tune
    from dnn2gp.evidence import Evidence
    from dnn2gp.gp import ByEvidence, GaussianProcess, Processes, convert, diagnose, load, save
    from dnn2gp.inference import (
        Calibration,
        FunctionSpace,
        GaussNewtonStep,
        Iterative,
        Kernel,
        LinearisedMode,
        NetworkOutput,
        Predictive,
        TopClasses,
        TopPredictive,
        WeightSpace,
    )
    from dnn2gp.likelihoods import (
        BernoulliLikelihood,
        CategoricalLikelihood,
        CustomLikelihood,
        GaussianLikelihood,
        PoissonLikelihood,
    )
    from dnn2gp.optim import OGGN, OGN, ON, VOGGN, VOGN, VON
    from dnn2gp.weights import BlockDiagonal, Dense, Diagonal, Kronecker, SampledColumns, precision_from_weight_decay

    __version__: str

__all__ = [  # noqa: RUF022 (grouped as the paper is: model and data, A, B, C, results)
    "convert",
    "BernoulliLikelihood",
    "CategoricalLikelihood",
    "CustomLikelihood",
    "GaussianLikelihood",
    "PoissonLikelihood",
    "precision_from_weight_decay",
    "Dense",
    "BlockDiagonal",
    "Kronecker",
    "Diagonal",
    "SampledColumns",
    "VOGN",
    "OGN",
    "VOGGN",
    "OGGN",
    "VON",
    "ON",
    "WeightSpace",
    "FunctionSpace",
    "Iterative",
    "NetworkOutput",
    "LinearisedMode",
    "GaussNewtonStep",
    "Calibration",
    "ByEvidence",
    "Processes",
    "GaussianProcess",
    "Kernel",
    "Predictive",
    "TopClasses",
    "TopPredictive",
    "Evidence",
    "diagnose",
    "tune",
    "save",
    "load",
]

# The rooms that define the public names.
_ROOMS = ("likelihoods", "weights", "inference", "evidence", "gp", "optim")

if not TYPE_CHECKING:  # type checkers see the imports above, and report every other name

    def __getattr__(name: str) -> object:
        """Import a public name, or a room, on first use."""
        if name == "__version__":
            from importlib.metadata import version

            found: object = version("dnn2gp")
        elif not name.startswith("_") and find_spec(f"dnn2gp.{name}") is not None:
            return import_module(f"dnn2gp.{name}")
        elif name in __all__:
            rooms = (import_module(f"dnn2gp.{room}") for room in _ROOMS)
            found = next(getattr(room, name) for room in rooms if hasattr(room, name))
        else:
            raise AttributeError(f"module 'dnn2gp' has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "__version__"})
