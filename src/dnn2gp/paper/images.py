"""What the experiments on images share: LeNet-5 by Adam (Laplace) or by VOGN (VI), and its GP on some examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dnn2gp.features import LayerwiseFeatures
from dnn2gp.inference.kernel import Kernel
from dnn2gp.inference.predictive import Predictive
from dnn2gp.likelihoods import CategoricalLikelihood
from dnn2gp.network import Network
from dnn2gp.optim.optimizer import OnlineNewtonOptimizer
from dnn2gp.paper.datasets import Images, load_images
from dnn2gp.paper.figure_result import written
from dnn2gp.paper.training.config import TrainConfig
from dnn2gp.paper.training.job import Training
from dnn2gp.plots.correlations import correlations
from dnn2gp.plots.report.claim import Claim
from dnn2gp.support.errors import FileFormatError, InputError
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.laplace import laplace
from dnn2gp.weights.structures import Diagonal, DiagonalPrecision

LAPLACE, VI = "laplace", "vi"
WORDS = {LAPLACE: "Laplace", VI: "VI"}
_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


@dataclass(frozen=True)
class ImagesConfig:
    """A LeNet-5 and what is looked at. δ is that of the *summed* loss: N times a weight decay on the mean loss."""

    data: str = "mnist"
    """The images: mnist or cifar10."""
    classes: tuple[int, ...] = ()
    """Those that the network is trained on; none: all."""
    methods: tuple[str, ...] = (LAPLACE, VI)
    adam_epochs: int = 20
    adam_lr: float = 2e-3
    adam_prior_precision: float = 6.0
    """δ of the training by Adam: 6 is a weight decay of 1e-4 on the 60,000 images of MNIST."""
    laplace_prior_precision: float = 6.0
    """δ of the Laplace step: that of the training, so that the prior is the same in both."""
    vogn_epochs: int = 15
    vogn_lr: float = 0.03
    vogn_prior_precision: float = 3.0
    vogn_leftover: float = 0.01
    """What is left of the first precision N / 10T in the last, as a share of δ: it says how fast it is forgotten."""
    temperature: float = 1.0
    batch_size: int = 128
    flip: bool = False
    """Whether images are turned left to right by chance while training."""
    num_train: int | None = None
    num_test: int | None = None
    per_class: int = 30
    """Examples of each class that are looked at: the first ones among the first `pool` training images."""
    pool: int = 1000
    seed: int = 0

    def smaller(self) -> ImagesConfig:
        """A little of it, to see that it works."""
        few = replace(self, adam_epochs=1, vogn_epochs=1, batch_size=32, num_train=128, num_test=64)
        return replace(few, temperature=0.01, per_class=3, pool=300)

    def training(self, method: str, num_train: int, folder: Path) -> TrainConfig:
        """How the network of a method is trained on so many images; its checkpoint goes to `folder`."""
        adam = method == LAPLACE
        first = num_train / (10 * self.temperature)
        steps = self.vogn_epochs * -(-num_train // self.batch_size)
        # first · (1 − β')^steps = leftover · δ
        rate = 1 - (self.vogn_leftover * self.vogn_prior_precision / first) ** (1 / steps)
        return TrainConfig(
            data=self.data + "".join(f" {own}" for own in self.classes),
            method="adam" if adam else "vogn",
            epochs=self.adam_epochs if adam else self.vogn_epochs,
            batch_size=self.batch_size,
            lr=self.adam_lr if adam else self.vogn_lr,
            prior_precision=self.adam_prior_precision if adam else self.vogn_prior_precision,
            initial_precision=None if adam else first,
            precision_lr=None if adam else rate,
            temperature=1.0 if adam else self.temperature,
            num_train=self.num_train,
            flip=self.flip,
            seed=self.seed,
            out=folder,
        )


@dataclass(frozen=True, eq=False)
class Trained:
    """A network, the diagonal Gaussian over its weights, and the share of test images that it gets right."""

    network: nn.Module
    posterior: Gaussian
    accuracy: float
    kernel_precision: DiagonalPrecision
    """V⁻¹ of the kernel J V Jᵀ: 1 for Laplace (the neural tangent kernel), Σ⁻¹ of q for VI."""


def load(config: ImagesConfig) -> Images:
    """All classes, as the network sees them: CIFAR-10 normalised by the paper's means and deviations."""
    images = load_images(config.data)
    if config.num_test is not None:
        own = images.test_images[: config.num_test], images.test_labels[: config.num_test]
        images = replace(images, test_images=own[0], test_labels=own[1])
    if config.data != "cifar10":
        return images
    return images.normalised(_CIFAR_MEAN, _CIFAR_STD)


def train(config: ImagesConfig, images: Images, method: str, folder: Path) -> Trained:
    """Train, or take the weights from the folder where the same training has left them; then the posterior."""
    if method not in WORDS:
        raise InputError(f"methods: expected some of {', '.join(WORDS)}; got {method!r}.")
    own = images.of_classes(config.classes) if config.classes else images
    num_train = len(own.train_labels) if config.num_train is None else config.num_train
    training = _training(config.training(method, num_train, folder), own)
    training.run()
    accuracy = training.score_at_the_mean().accuracy
    optimizer = training.optimizer
    if isinstance(optimizer, OnlineNewtonOptimizer):
        posterior = optimizer.posterior()
        assert isinstance(posterior.precision, DiagonalPrecision)
        return Trained(training.network, posterior, accuracy, posterior.precision)
    posterior = _laplace(training.network, training.inputs, training.labels, config.laplace_prior_precision)
    unit = DiagonalPrecision(torch.ones_like(posterior.mean))
    return Trained(training.network, posterior, accuracy, unit)


def look_at_all(config: ImagesConfig, folder: Path) -> dict[str, np.ndarray]:
    """The arrays of `look` for every method, under its name, beside the images and their labels."""
    images = load(config)
    places = chosen(config, images.train_labels)
    inputs = images.train_images[places]
    arrays = {
        "images": pictures(config, inputs),
        "labels": images.train_labels[places].numpy(),
        "places": places.numpy(),
        "classes": np.array(images.classes),
    }
    for method in config.methods:
        trained = train(config, images, method, folder)
        arrays[f"{method}_accuracy"] = np.array(trained.accuracy)
        arrays |= {f"{method}_{name}": values for name, values in look(trained, inputs).items()}
    return arrays


def chosen(config: ImagesConfig, labels: Int[Tensor, " N"]) -> Int[Tensor, " n"]:
    """The first `per_class` examples of each class among the first `pool`, class by class."""
    pool = labels[: config.pool]
    return torch.cat([(pool == own).nonzero()[: config.per_class, 0] for own in pool.unique()])


def look(trained: Trained, inputs: Float[Tensor, "N C H W"]) -> dict[str, np.ndarray]:
    """Kernel, posterior mean and both uncertainties of the GP at some examples, with a diagonal posterior.

    kernel          tr J V Jᵀ, N × N
    posterior_mean  E[f] = J μ, N × K
    probabilities, aleatoric, epistemic   of y, N × K, by Eq. (48): softmax f, Λ, and Λ J Σ̃ Jᵀ Λ
    """
    features = _features(trained.network, inputs)
    mean = features.jvp(inputs, trained.posterior.mean.to(features.anchor)[:, None])[..., 0]
    own = predict(trained, inputs)
    found = {
        "posterior_mean": mean,
        "probabilities": own.mean,
        "aleatoric": own.aleatoric,
        "epistemic": own.epistemic,
    }
    arrays = {name: value.detach().double().numpy() for name, value in found.items()}
    return {"kernel": kernel(trained, inputs), **arrays}


def kernel(trained: Trained, inputs: Float[Tensor, "N C H W"]) -> np.ndarray:
    """tr J V Jᵀ, N × N."""
    features = _features(trained.network, inputs)
    return Kernel(features, trained.kernel_precision).trace(inputs).detach().double().numpy()


def predict(trained: Trained, inputs: Float[Tensor, "N C H W"]) -> Predictive:
    """The predictive distribution of the labels, with the mean where the network is."""
    features = _features(trained.network, inputs)
    outputs = features.outputs(inputs).detach()
    covariance = features.covariance(inputs, trained.posterior.precision).to(outputs.dtype)
    shape = tuple(outputs.shape[1:])
    return Predictive(CategoricalLikelihood(), shape, outputs, torch.zeros_like(outputs), covariance)


def pictures(config: ImagesConfig, inputs: Float[Tensor, "N C H W"]) -> np.ndarray:
    """Images as the eye sees them: uint8, N × H × W, or N × H × W × 3 in colour."""
    if config.data == "cifar10":
        centre, scale = (torch.tensor(own)[:, None, None] for own in (_CIFAR_MEAN, _CIFAR_STD))
        inputs = inputs * scale + centre
    values = (inputs.clamp(0, 1) * 255).round().byte()
    return (values[:, 0] if values.shape[1] == 1 else values.permute(0, 2, 3, 1)).numpy()


def same_class_ratio(values: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The mean entry of pairs of one class, and that of pairs of two classes; no example beside itself."""
    same = labels[:, None] == labels[None, :]
    others = ~np.eye(len(labels), dtype=bool)
    return float(values[same & others].mean()), float(values[~same].mean())


def accuracy_claim(words: str, accuracy: float, paper: str, holds: Callable[[float], bool] | None) -> Claim:
    """How many test images a network gets right."""
    return Claim(f"test accuracy of {words}", paper, f"{accuracy:.2%}", None if holds is None else holds(accuracy))


def kernel_claim(words: str, arrays: dict[str, np.ndarray], method: str, paper: str) -> Claim:
    """Examples of one class are more alike to the kernel than others."""
    kernel, labels = arrays[f"{method}_kernel"], arrays["labels"]
    same, other = same_class_ratio(kernel, labels)
    ratio = f"{same / other:.2f} times" if other > 0 else "the other below 0:"
    alike = same_class_ratio(correlations(kernel), labels)
    return Claim(
        f"{words}, {WORDS[method]}: kernel entries of one class exceed those of two",
        paper,
        f"mean {written(same)} beside {written(other)} ({ratio}); as correlations {alike[0]:.2f} beside {alike[1]:.2f}",
        same > other,
    )


def _training(config: TrainConfig, images: Images) -> Training:
    """With the checkpoint in its folder, where it is one of the same training."""
    config.check()
    config.folder.mkdir(parents=True, exist_ok=True)
    try:
        return Training(config, images, resume=True)
    except (InputError, FileFormatError):  # of other settings, or of something else
        return Training(config, images, resume=False)


def _laplace(network: nn.Module, inputs: Float[Tensor, "N C H W"], labels: Int[Tensor, " N"], delta: float) -> Gaussian:
    """N(w, (diag JᵀΛJ + δ)⁻¹), of all training data."""
    features = _features(network, inputs)
    weights = features.anchor
    prior = Gaussian(torch.zeros_like(weights), DiagonalPrecision(torch.full_like(weights, delta)))
    return laplace(Expansion.gauss_newton(features, inputs, labels, CategoricalLikelihood()), prior, Diagonal())


def _features(network: nn.Module, inputs: Float[Tensor, "N C H W"]) -> LayerwiseFeatures:
    return LayerwiseFeatures(Network(network, inputs[:2]), inputs[:2])
