"""The figures on images, at small size on made-up images: their arrays against brute force, and what is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_data import make_data
from torch.func import functional_call, jacrev

from dnn2gp.optim.checkpoints import load_checkpoint
from dnn2gp.paper import image_figures
from dnn2gp.paper.datasets import load_images
from dnn2gp.paper.figure import Workspace
from dnn2gp.paper.figures import binary_mnist, cifar, mnist, ood
from dnn2gp.paper.networks import lenet5
from dnn2gp.support.errors import InputError


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def _made_data(data, monkeypatch, tmp_path):
    monkeypatch.setenv("DNN2GP_DATA", str(data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def jacobian(network, x):
    """N × K × P in float64, by reverse-mode autograd."""
    names = [name for name, _ in network.named_parameters()]
    weights = {name: weight.detach().double() for name, weight in network.named_parameters()}
    found = jacrev(lambda own: functional_call(network, own, (x.double(),)))(weights)
    return torch.cat([found[name].flatten(2) for name in names], 2)


@pytest.mark.slow
def test_arrays_by_brute_force(tmp_path):
    """Kernel JJᵀ or JΣJᵀ, mean Jμ, and Λ J Σ Jᵀ Λ with Σ = (diag JᵀΛJ + δ)⁻¹ for Laplace."""
    config = replace(mnist.FIGURE.smoke, num_train=20, per_class=2, batch_size=20, laplace_prior_precision=2.0)
    result = mnist.FIGURE.run(config, Workspace(weights=tmp_path))
    own, all_images = result.arrays, load_images("mnist")
    x = all_images.train_images[torch.from_numpy(own["places"])]
    np.testing.assert_array_equal(own["images"], (x[:, 0] * 255).round().byte().numpy())
    for method, folder in (("laplace", "adam"), ("vi", "vogn")):
        tree = load_checkpoint(tmp_path / folder / "checkpoint.safetensors")
        network = lenet5()
        network.load_state_dict(tree["network"])
        J = jacobian(network, x)
        weights = torch.cat([weight.detach().flatten() for weight in network.parameters()]).double()
        with torch.no_grad():
            p = network.double()(x.double()).softmax(1)
        noise = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        if method == "laplace":
            train = all_images.train_images[:20]
            G = jacobian(network, train)
            with torch.no_grad():
                q = network(train.double()).softmax(1)
            root = torch.diag_embed(q) - q[:, :, None] * q[:, None, :]
            precision = torch.einsum("nkp,nkl,nlp->p", G, root, G) + 2.0
            kernel = torch.einsum("nkp,mkp->nm", J, J)
        else:
            precision = _precision(tree["optimizer"])
            kernel = torch.einsum("nkp,p,mkp->nm", J, 1 / precision, J)
        latent = torch.einsum("nkp,p,nlp->nkl", J, 1 / precision, J)
        epistemic = (noise @ latent @ noise).diagonal(dim1=1, dim2=2)
        expected = {
            "kernel": kernel,
            "posterior_mean": J @ weights,
            "probabilities": p,
            "aleatoric": noise.diagonal(dim1=1, dim2=2),
            "epistemic": epistemic,
        }
        for name, values in expected.items():  # the network is float32
            values = values.numpy()
            gap = np.abs(own[f"{method}_{name}"] - values).max() / np.abs(values).max()
            assert gap < 1e-4, (method, name, gap)


def _precision(node):
    """The diagonal of Σ⁻¹ in the optimizer's state, wherever it is."""
    if not isinstance(node, dict):
        return None
    if "precision" in node:
        return node["precision"].double()
    found = [own for own in map(_precision, node.values()) if own is not None]
    return found[0] if found else None


@pytest.mark.parametrize("module", [mnist, cifar, binary_mnist])
@pytest.mark.parametrize("preset", ["paper", "smoke"])
def test_the_first_precision_of_vogn_is_forgotten(module, preset, tmp_path):
    """Σ_T⁻¹ = (1 − β')^T Σ_0⁻¹ + …: what is left of the first one is a hundredth of the prior's."""
    config, count = module.FIGURE.preset(preset), 128 if preset == "smoke" else 50_000
    own = config.training("vi", count, tmp_path)
    steps = own.epochs * -(-count // own.batch_size)
    left = own.initial_precision * (1 - own.precision_lr) ** steps
    assert left == pytest.approx(0.01 * own.prior_precision, rel=1e-9)
    assert own.initial_precision == pytest.approx(count / (10 * config.temperature))


def test_same_class_means_by_a_loop():
    generator = np.random.default_rng(0)
    kernel, labels = generator.normal(size=(7, 7)), np.array([0, 0, 1, 1, 1, 2, 2])
    same = [kernel[i, j] for i in range(7) for j in range(7) if i != j and labels[i] == labels[j]]
    other = [kernel[i, j] for i in range(7) for j in range(7) if labels[i] != labels[j]]
    assert image_figures.same_class_means(kernel, labels) == pytest.approx((np.mean(same), np.mean(other)))


@pytest.mark.parametrize("strength", [0.1, 0.9])
def test_correlations_of_each_kind_of_pair_by_loops(strength):
    """|ρ| within a digit, between the two, with others, and of each other with the nearer of the two."""
    labels = np.array([0, 2, 0, 1, 1, 3, 0])
    rho = np.random.default_rng(0).uniform(-1, 1, size=(7, 7))
    rho[np.ix_(labels < 2, labels > 1)] *= strength
    within, between, beyond = [], [], {place: ([], []) for place in (1, 5)}
    for i, one in enumerate(labels):
        for j, two in enumerate(labels):
            if one < 2 and i != j:
                kind = beyond[j][one] if two > 1 else within if one == two else between
                kind.append(abs(rho[i, j]))
    nearer = np.mean([max(np.mean(zeros), np.mean(ones)) for zeros, ones in beyond.values()])
    both = np.mean([value for pair in beyond.values() for own in pair for value in own])
    slight, strong = binary_mnist._correlation_claims(rho, labels, (0, 1))
    words = f"{nearer:.2f} with the closer of 0 and 1 ({both:.2f} with both), {np.mean(within):.2f} within a digit"
    assert slight.measured == f"mean |correlation| {words}"
    assert slight.holds is (strength == 0.1) is bool(nearer <= 0.5 * np.mean(within))
    assert (
        strong.measured == f"mean |correlation| {np.mean(between):.2f} between 0 and 1, {both:.2f} with unseen digits"
    )
    assert strong.holds is bool(np.mean(between) > both)


@pytest.mark.parametrize(("least", "holds"), [(-0.04, False), (-0.06, True)])
def test_negative_correlations_are_more_than_noise(least, holds):
    """A sign alone is none: κ = 4ρ of four examples of two classes."""
    rho = np.eye(4)
    rho[0, 3] = rho[3, 0] = least
    arrays = {"labels": np.array([0, 0, 1, 1]), "vi_kernel": 4 * rho, "laplace_kernel": np.ones((4, 4))}
    claim = mnist._negative_claim(arrays)
    assert claim.holds is holds
    shares = "25.0% versus 0.0%" if holds else "0.0% versus 0.0%"
    assert claim.measured.startswith(f"below −0.05: {shares} of the pairs (below 0: 25.0% versus 0.0%")


@pytest.mark.slow
@pytest.mark.parametrize("module", [mnist, cifar, binary_mnist, ood])
def test_the_same_twice_and_from_kept_weights(module, tmp_path):
    """Fresh trainings and kept weights give the same bytes; what is wrong is refused."""
    figure = module.FIGURE
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = figure.run(figure.smoke, Workspace(weights=tmp_path / "a"))
    assert torch.equal(torch.get_rng_state(), state)
    first.save(tmp_path / "one")
    name = f"{first.figure}.npz"
    folders = ["a"] if module is ood else ["a", "b"]  # it trains as mnist does
    for folder in folders:
        figure.run(figure.smoke, Workspace(weights=tmp_path / folder)).save(tmp_path / "two")
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert all(np.isfinite(values).all() for values in first.arrays.values() if values.dtype.kind == "f")
    with pytest.raises(InputError, match="paper or smoke"):
        figure.preset("large")


def test_other_settings_train_anew(tmp_path):
    config, workspace = binary_mnist.FIGURE.smoke, Workspace(weights=tmp_path)
    first = binary_mnist.FIGURE.run(config, workspace)
    other = binary_mnist.FIGURE.run(replace(config, seed=1), workspace)
    assert not np.array_equal(first.arrays["vi_kernel"], other.arrays["vi_kernel"])
    with pytest.raises(InputError, match="methods"):
        binary_mnist.FIGURE.run(replace(config, methods=("guess",)), workspace)
    with pytest.raises(InputError, match="workspace"):
        binary_mnist.FIGURE.run(config)


@pytest.mark.slow
def test_areas_by_counting_pairs(tmp_path):
    """AUROC is the share of pairs in the right order, ties counting half."""
    own = ood.FIGURE.run(ood.FIGURE.smoke, Workspace(weights=tmp_path)).arrays
    for score in ood.SCORES:
        values = own[f"laplace_{score}"]
        known, other = values[own["outside"] == 0], values[own["outside"] == 1]
        pairs = [(b > a) + 0.5 * (b == a) for a in known for b in other]
        assert ood.auroc(own, "laplace", score) == pytest.approx(np.mean(pairs), abs=1e-12)
        table = np.reshape(pairs, (len(known), len(other)))
        variance = table.mean(1).var(ddof=1) / len(known) + table.mean(0).var(ddof=1) / len(other)
        assert ood.auroc_error(own, "laplace", score) == pytest.approx(np.sqrt(variance), abs=1e-12)
    p = own["laplace_few_probabilities"]
    np.testing.assert_allclose(own["laplace_max_probability"][:12], 1 - p[:12].max(1), atol=1e-6)
    entropy = -(p[:12] * np.log(p[:12])).sum(1)
    np.testing.assert_allclose(own["laplace_entropy"][:12], entropy, rtol=1e-4)
    for method in ood.FIGURE.smoke.network.methods:
        information, total = own[f"{method}_mutual_information"], own[f"{method}_average_entropy"]
        assert (information > 0).all()
        assert (information < total).all()
        assert (total < np.log(10)).all()
