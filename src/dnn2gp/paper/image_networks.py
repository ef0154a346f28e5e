"""LeNet-5 on images, trained with Adam (Laplace) or with VOGN (VI), and the results of its GP for some examples."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.gp.convert import convert
from dnn2gp.inference.kernel import Kernel
from dnn2gp.inference.mean import GaussNewtonStep
from dnn2gp.inference.predictive import Predictive
from dnn2gp.likelihoods import CategoricalLikelihood
from dnn2gp.optim.optimizer import OnlineNewtonOptimizer
from dnn2gp.paper.datasets import Images, load_images
from dnn2gp.paper.figure import Workspace
from dnn2gp.paper.training import TrainConfig, Training
from dnn2gp.support.errors import FileFormatError, InputError, NotAMinimumWarning
from dnn2gp.weights.structures import Diagonal

LAPLACE, VI = "laplace", "vi"
WORDS = {LAPLACE: "Laplace", VI: "VI"}
_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


@dataclass(frozen=True)
class ImagesConfig:
    """How LeNet-5 is trained, and which examples its GP is evaluated at. δ refers to the *summed* loss."""

    data: str = "mnist"
    """mnist or cifar10."""
    classes: tuple[int, ...] = ()
    """The classes to train on; empty: all."""
    methods: tuple[str, ...] = (LAPLACE, VI)
    adam_epochs: int = 20
    adam_lr: float = 2e-3
    adam_prior_precision: float = 6.0
    """δ when training with Adam; 6 is a weight decay of 1e-4 on the 60,000 images of MNIST."""
    laplace_prior_precision: float = 6.0
    """δ of the Laplace step: the same as in training, so that both have the same prior."""
    vogn_epochs: int = 15
    vogn_lr: float = 0.03
    vogn_prior_precision: float = 3.0
    vogn_leftover: float = 0.01
    """How much of the initial precision N / 10T is left in the final one, as a fraction of δ; sets the decay rate."""
    temperature: float = 1.0
    batch_size: int = 128
    flip: bool = False
    """Whether training images are flipped left to right at random."""
    num_train: int | None = None
    num_test: int | None = None
    per_class: int = 30
    """Examples of each class to evaluate: the first ones among the first `pool` training images."""
    pool: int = 1000
    seed: int = 0

    def smaller(self) -> ImagesConfig:
        """A small version, to check that everything works."""
        few = replace(self, adam_epochs=1, vogn_epochs=1, batch_size=32, num_train=128, num_test=64)
        return replace(few, temperature=0.01, per_class=3, pool=300)

    def training(self, method: str, num_train: int, folder: Path) -> TrainConfig:
        """The training run of a method on this many images, with its checkpoint in `folder`."""
        data = self.data + "".join(f" {own}" for own in self.classes)
        shared = TrainConfig(
            data=data, batch_size=self.batch_size, num_train=self.num_train, flip=self.flip, seed=self.seed, out=folder
        )
        if method == LAPLACE:
            own = {"epochs": self.adam_epochs, "lr": self.adam_lr, "prior_precision": self.adam_prior_precision}
            return replace(shared, method="adam", **own)
        first = num_train / (10 * self.temperature)
        steps = self.vogn_epochs * -(-num_train // self.batch_size)
        # first · (1 − β')^steps = leftover · δ
        rate = 1 - (self.vogn_leftover * self.vogn_prior_precision / first) ** (1 / steps)
        return replace(
            shared,
            method="vogn",
            epochs=self.vogn_epochs,
            lr=self.vogn_lr,
            prior_precision=self.vogn_prior_precision,
            initial_precision=first,
            precision_lr=rate,
            temperature=self.temperature,
        )


@dataclass(frozen=True, eq=False)
class NetworkGP:
    """A trained network as a GP with a diagonal posterior, by Laplace or by VI."""

    accuracy: float
    """The fraction of correctly classified test images."""
    predict: Callable[[Tensor], Predictive]
    """The labels at some images, with the mean where the network is."""
    kernel: Kernel
    """J V Jᵀ: V = I for Laplace (the neural tangent kernel), the covariance of q for VI."""

    def arrays(self, inputs: Float[Tensor, "N C H W"]) -> dict[str, np.ndarray]:
        """The GP at some examples.

        kernel          tr J V Jᵀ, N × N
        posterior_mean  E[f] = J μ, N × K
        probabilities, aleatoric, epistemic   of y, N × K, by Eq. (48): softmax f, Λ, and Λ J Σ̃ Jᵀ Λ
        """
        features, own = self.kernel.features, self.predict(inputs)
        found = {
            "kernel": self.kernel.trace(inputs),
            "posterior_mean": features.jvp(inputs, features.anchor[:, None])[..., 0],
            "probabilities": own.mean,
            "aleatoric": own.aleatoric,
            "epistemic": own.epistemic,
        }
        return {name: value.detach().double().numpy() for name, value in found.items()}


def load(config: ImagesConfig) -> Images:
    """All classes, as the network sees them: CIFAR-10 is normalised with the paper's means and deviations."""
    images = load_images(config.data)
    if config.num_test is not None:
        own = images.test_images[: config.num_test], images.test_labels[: config.num_test]
        images = replace(images, test_images=own[0], test_labels=own[1])
    if config.data != "cifar10":
        return images
    return images.normalised(_CIFAR_MEAN, _CIFAR_STD)


def pictures(config: ImagesConfig, inputs: Float[Tensor, "N C H W"]) -> np.ndarray:
    """Images for display: uint8, N × H × W, or N × H × W × 3 in colour."""
    if config.data == "cifar10":
        centre, scale = (torch.tensor(own)[:, None, None] for own in (_CIFAR_MEAN, _CIFAR_STD))
        inputs = inputs * scale + centre
    values = (inputs.clamp(0, 1) * 255).round().byte()
    return (values[:, 0] if values.shape[1] == 1 else values.permute(0, 2, 3, 1)).numpy()


def trained_gp(config: ImagesConfig, images: Images, method: str, workspace: Workspace) -> NetworkGP:
    """Train the network, or load the weights of the same training run from the workspace, and turn it into a GP."""
    if method not in WORDS:
        raise InputError(f"methods: expected some of {', '.join(WORDS)}; got {method!r}.")
    if workspace.weights is None:
        raise InputError("workspace: expected a folder for the trained networks, Workspace(weights=...); got none.")
    own = images.of_classes(config.classes) if config.classes else images
    num_train = len(own.train_labels) if config.num_train is None else config.num_train
    training = _training(config.training(method, num_train, workspace.weights), own)
    training.run()
    accuracy, optimizer, some = training.score_at_the_mean().accuracy, training.optimizer, training.inputs[:2]
    if isinstance(optimizer, OnlineNewtonOptimizer):
        return NetworkGP(accuracy, optimizer.predict, optimizer.kernel(some))
    data, likelihood = (training.inputs, training.labels), CategoricalLikelihood()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotAMinimumWarning)  # a diagonal posterior stays at the network
        gp = convert(
            training.network,
            data,
            likelihood,
            config.laplace_prior_precision,
            structure=Diagonal(),
            mean=GaussNewtonStep(),
        )
    return NetworkGP(accuracy, gp.predict, Kernel.neural_tangent(training.network, some))


def _training(config: TrainConfig, images: Images) -> Training:
    """The training run, resumed from the checkpoint in its folder if that belongs to the same run."""
    config.check()
    config.folder.mkdir(parents=True, exist_ok=True)
    try:
        return Training(config, images, resume=True)
    except (InputError, FileFormatError):  # a checkpoint with other settings, or a damaged one
        return Training(config, images, resume=False)
