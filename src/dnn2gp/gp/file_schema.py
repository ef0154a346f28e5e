"""The tensors that a saved GP consists of, with shapes and dtypes, compared with a file before any of them is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from dnn2gp.gp.file_header import Header
from dnn2gp.inference import FunctionSpace, Iterative, WeightSpace
from dnn2gp.inference.iterative.report import NUM_FACTS
from dnn2gp.network.inputs import all_finite
from dnn2gp.support.tensor_file import Entry, damaged
from dnn2gp.weights.structures import BlockDiagonal, Dense, Diagonal, Kronecker, Structure

CHECKED_EXAMPLES = 4
"""The number of examples whose outputs are saved, to check on loading that the network still computes the same."""
FIRST_EXAMPLES = 32
"""The number of examples in a file without the data: as many as engines look at (`network_features.py`)."""

_SUMS = "streamed/checksums"
_DOUBLE = (torch.float64,)
_FLOATS = (torch.float32, torch.float64)
_POSITIVE = re.compile(r"(prior|inference)/(\d+\.delta|values)|(prior|inference)/factor|likelihood/sigma")
_NOT_NEGATIVE = re.compile(r"(prior|inference)/\d+\.(input|output)_values")
BUILT_IN = ("gaussian", "bernoulli", "categorical", "poisson", "custom")
"""The likelihoods whose tensors and targets are known here."""


@final
@dataclass(frozen=True)
class Spec:
    """What an entry must be: the lengths of its axes (None for any), and one of some dtypes (None for any)."""

    shape: tuple[int | None, ...]
    dtypes: tuple[torch.dtype, ...] | None = _DOUBLE
    optional: bool = False

    def admits(self, entry: Entry) -> bool:
        """Whether the entry is such a tensor."""
        same = len(entry.shape) == len(self.shape) and all(
            own in (None, found) for own, found in zip(self.shape, entry.shape, strict=True)
        )
        return same and (self.dtypes is None or entry.dtype in self.dtypes)

    def __str__(self) -> str:
        """The dtypes and the shape, for messages."""
        dtypes = [str(dtype).removeprefix("torch.") for dtype in self.dtypes or ()]
        axes = ", ".join("…" if own is None else str(own) for own in self.shape)
        return f"{' or '.join(dtypes) or 'any dtype'} of shape ({axes}{',' if len(self.shape) == 1 else ''})"


@final
@dataclass(frozen=True)
class Schema:
    """The sizes of a saved GP, from its entries, and what follows from them for every other entry."""

    path: Path
    header: Header
    entries: Mapping[str, Entry]
    read: Callable[[str], Tensor]
    """The content of an entry; only the ranges of blocks are read here, which say what the other entries must be."""

    def check(self) -> None:
        """Compare all entries with what they must be; the first that differs is a `FileFormatError`."""
        expected = {**self._data(), **self._prior(), **self._posterior(), **self._parameters()}
        for name, spec in expected.items():
            entry = self.entries.get(name)
            if entry is None and not spec.optional:
                raise damaged(self.path, name, str(spec), "no such tensor")
            if entry is not None and not spec.admits(entry):
                raise damaged(self.path, name, str(spec), str(entry))
        free = ("network/", *self._of_others)
        for name in self.entries:
            if name not in expected and not name.startswith(free):
                raise damaged(self.path, name, "no such tensor", str(self.entries[name]))

    def check_values(self, name: str, tensor: Tensor) -> None:
        """Refuse NaN and infinity where only frozen weights and buffers may have them, and precisions that are not > 0.

        The log-likelihood may be −∞.
        """
        frozen = name.startswith("network/") and name.removeprefix("network/") not in self.header.trainable
        if frozen or not (tensor.is_floating_point() or tensor.is_complex()):
            return
        likelihood = name == "expansion/log_likelihood"
        own = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # torch has no sums in float8
        if not all_finite(own) and not (likelihood and own == -torch.inf):
            raise damaged(self.path, name, "finite numbers", "NaN or infinity")
        known = not name.startswith(tuple(self._of_others))
        own = own.diagonal() if known and name.endswith("/factor") else own
        if known and _POSITIVE.fullmatch(name) and not bool((own > 0).all()):
            raise damaged(self.path, name, "positive numbers", f"{own.min().item():.3g}")
        if known and _NOT_NEGATIVE.fullmatch(name) and bool((own < 0).any()):
            raise damaged(self.path, name, "numbers ≥ 0", f"{own.min().item():.3g}")
        if name == "expansion/root" and self.header.quadratic:
            self._check_roots(own)

    def _check_roots(self, roots: Tensor) -> None:
        """Refuse a root S that has no inverse where the noise S⁻ᵀS⁻¹ of a Gaussian likelihood is needed."""
        singular = ~torch.linalg.slogdet(roots.double()).logabsdet.isfinite()
        if bool(singular.any()):
            example = int(singular.nonzero()[0])
            raise damaged(
                self.path, "expansion/root", "matrices with an inverse", f"a singular one for example {example}"
            )

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, which all of them share."""
        dtypes = {self._entry(f"network/{name}").dtype: name for name in self.header.trainable}
        for dtype, name in dtypes.items():
            if dtype not in _FLOATS or len(dtypes) > 1:
                raise damaged(self.path, f"network/{name}", "float32 or float64, as all weights", str(dtype))
        return next(iter(dtypes))

    @cached_property
    def num_weights(self) -> int:
        """P."""
        count = sum(prod(self._entry(f"network/{name}").shape) for name in self.header.trainable)
        if count == 0:
            raise damaged(self.path, "trainable", "at least one weight", "none")
        return count

    @cached_property
    def num_examples(self) -> int:
        """N."""
        return self._axis(_SUMS if _SUMS in self.entries else "inputs/0", 0)

    @cached_property
    def num_samples(self) -> int:
        """S: the weights that a training step is expanded at; otherwise 1."""
        return self._axis("step/samples", 0) if self.header.features == "step" else 1

    @cached_property
    def num_columns(self) -> int:
        """S K, the outputs of one example at all of these weights."""
        columns = self._axis("check/outputs", 1)
        if columns % self.num_samples:
            raise damaged(self.path, "check/outputs", f"a multiple of {self.num_samples} columns", str(columns))
        return columns

    @cached_property
    def num_sites(self) -> int:
        """M = N R."""
        return self.num_examples * self._axis("expansion/root", 2)

    def _data(self) -> dict[str, Spec]:
        """Inputs, expansion and training step."""
        N, P, dtypes, columns = self.num_examples, self.num_weights, (self.dtype,), self.num_columns
        form = self.header.inputs
        given = sum(name.startswith("inputs/") for name in self.entries)
        count = len(form) if isinstance(form, list) else 1 if form == "tensor" else max(1, given)
        gradient = self.header.features == "gradient"
        root = (N, 1, 1) if gradient else (N, columns, columns if self.header.quadratic else None)
        expected = {f"inputs/{position}": self._input(f"inputs/{position}") for position in range(count)}
        expected |= {
            "check/outputs": Spec((min(CHECKED_EXAMPLES, N), columns), dtypes),
            "expansion/residual": Spec((N, columns), dtypes),
            "expansion/root": Spec(root, dtypes),
            "expansion/log_likelihood": Spec(()),
        }
        if _SUMS in self.entries and self.header.features != "step":
            expected |= {_SUMS: Spec((N,), (torch.int64,))}
        if self.header.features == "jacobian":
            expected |= {"expansion/targets": self._targets(), "model/moved": Spec((P,), optional=True)}
        if self.header.features != "step":
            expected |= {"model/centre": Spec((P,), optional=True)}
        if self.header.features == "step":
            expected |= {"step/anchor": Spec((P,), dtypes), "step/samples": Spec((self.num_samples, P), dtypes)}
        return expected

    def _targets(self) -> Spec:
        """One row of targets for each example, in the form of the likelihood; files of earlier releases have none."""
        if self.header.likelihood == "categorical":
            return Spec((self.num_examples,), (torch.int64,), optional=True)
        if self.header.likelihood in BUILT_IN:
            columns = None if self.header.likelihood == "custom" else self.num_columns
            return Spec((self.num_examples, columns), (self.dtype,), optional=True)
        found = self.entries.get("expansion/targets")
        axes = 0 if found is None else max(0, len(found.shape) - 1)
        return Spec((self.num_examples, *[None] * axes), (*_FLOATS, torch.int64), optional=True)

    def _input(self, name: str) -> Spec:
        """One tensor of the inputs: N examples of any shape, in the dtype of the weights if they are floats.

        If the data are not in the file, only the first examples.
        """
        entry, count = self._entry(name), self.num_examples
        axes = [None] * (len(entry.shape) - 1)
        return Spec(
            (min(FIRST_EXAMPLES, count) if _SUMS in self.entries else count, *axes),
            (self.dtype,) if entry.dtype.is_floating_point else None,
        )

    def _prior(self) -> dict[str, Spec]:
        mean = {"prior/mean": Spec((self.num_weights,), (self.dtype,))}
        return {**mean, **self._structure(self.header.prior, "prior/")}

    def _posterior(self) -> dict[str, Spec]:
        inference = self.header.inference
        if isinstance(inference, FunctionSpace):
            rows = self.num_sites + self.num_weights
            basis = {"inference/basis": Spec((rows, self.num_sites), optional=True)}
            return {"inference/factor": Spec((self.num_sites, self.num_sites)), **basis}
        if isinstance(inference, Iterative):
            columns, dtypes = (self.num_weights, None), (self.dtype,)
            tensors = {f"inference/{name}": Spec(columns, dtypes) for name in ("root", "samples", "differences")}
            step = {"inference/step": Spec((self.num_weights,), optional=True)}
            return {**tensors, "inference/log_dets": Spec((None,)), "inference/report": Spec((NUM_FACTS,)), **step}
        return self._structure(inference.structure, "inference/") if isinstance(inference, WeightSpace) else {}

    def _parameters(self) -> dict[str, Spec]:
        """σ of a Gaussian likelihood: one number, one per output, or one per example."""
        name = "likelihood/sigma"
        if self.header.likelihood != "gaussian":
            return {}
        K, N, found = self.num_columns // self.num_samples, self.num_examples, self._entry(name).shape
        shapes: dict[int, tuple[int, ...]] = {0: (), 1: (K,)}
        shape = shapes.get(len(found), (N, 1 if found[-1:] == (1,) else K))
        return {name: Spec(shape, (*_FLOATS, torch.float16, torch.bfloat16))}

    @cached_property
    def _of_others(self) -> list[str]:
        """The parts whose tensors are known only to a structure, inference or likelihood from outside the package."""
        known = (Dense, Diagonal, BlockDiagonal, Kronecker)
        inference = self.header.inference
        own = isinstance(inference, FunctionSpace | Iterative)
        own = own or (isinstance(inference, WeightSpace) and isinstance(inference.structure, known))
        parts = {
            "prior/": isinstance(self.header.prior, known),
            "inference/": own,
            "likelihood/": self.header.likelihood in BUILT_IN,
        }
        return [part for part, closed in parts.items() if not closed]

    def _structure(self, structure: Structure, part: str) -> dict[str, Spec]:
        """The tensors of a precision over P weights."""
        P = self.num_weights
        if isinstance(structure, Diagonal):
            return {f"{part}values": Spec((P,), _FLOATS)}
        if isinstance(structure, Dense):
            return self._dense(part)
        if isinstance(structure, BlockDiagonal | Kronecker):
            return self._blocks(part, kronecker=isinstance(structure, Kronecker))
        return {}

    def _dense(self, part: str) -> dict[str, Spec]:
        """Σ⁻¹, or its factor; with the factor of a posterior, the step to the mean and the least squares it reaches."""
        P = self.num_weights
        if f"{part}factor" not in self.entries:
            return {f"{part}matrix": Spec((P, P))}
        factor = {f"{part}factor": Spec((P, P))}
        solved = part == "inference/" and self.header.quadratic
        return {**factor, f"{part}step": Spec((P,)), f"{part}misfit": Spec(())} if solved else factor

    def _blocks(self, part: str, *, kronecker: bool) -> dict[str, Spec]:
        """The tensors of all blocks, whose ranges together contain every weight once."""
        pattern = re.compile(rf"{part}\d+\.ranges")
        count = max(1, sum(pattern.fullmatch(name) is not None for name in self.entries))
        expected: dict[str, Spec] = {}
        covered: list[tuple[int, int]] = []
        for number in range(count):
            block = f"{part}{number}."
            ranges = self._ranges(f"{block}ranges")
            covered += ranges
            sizes = [stop - start for start, stop in ranges]
            expected[f"{block}ranges"] = Spec((len(ranges), 2), (torch.int64,))
            expected |= self._factors(block, sizes) if kronecker else {f"{block}matrix": Spec((sum(sizes), sum(sizes)))}
        self._check_covered(f"{part}*.ranges", covered)
        return expected

    def _ranges(self, name: str) -> list[tuple[int, int]]:
        """The ranges of weights of a block: non-empty, and within 0 … P."""
        self._admit(name, Spec((None, 2), (torch.int64,)))
        if self.entries[name].shape[0] > self.num_weights:
            raise damaged(self.path, name, f"at most {self.num_weights} ranges", str(self.entries[name]))
        ranges = [(int(start), int(stop)) for start, stop in self.read(name).tolist()]
        if not ranges or not all(0 <= start < stop <= self.num_weights for start, stop in ranges):
            raise damaged(self.path, name, f"ranges of the {self.num_weights} weights", str(ranges[:5]))
        return ranges

    def _check_covered(self, name: str, ranges: list[tuple[int, int]]) -> None:
        place = 0
        for start, stop in [*sorted(ranges), (self.num_weights, self.num_weights)]:
            if start != place:
                what = "none" if start > place else "several"
                raise damaged(self.path, name, f"one block for weight {min(start, place)}", what)
            place = stop

    def _factors(self, block: str, sizes: list[int]) -> dict[str, Spec]:
        """The eigenvalues and eigenvectors of a layer's A (i × i) and G (o × o), with o i weights."""
        self._admit(f"{block}form", Spec((2,), (torch.bool,)))
        transposed, bias = self.read(f"{block}form").tolist()
        o, i = self._axis(f"{block}output_values", 0), self._axis(f"{block}input_values", 0)
        if o * i != sum(sizes):
            raise damaged(self.path, f"{block}input_values", f"{sum(sizes)} weights as {o} × i", f"i = {i}")
        if bias and (transposed or sizes != [o * (i - 1), o]):
            raise damaged(self.path, f"{block}form", "the ranges of a matrix and a bias", f"ranges of {sizes[:5]}")
        return {
            f"{block}form": Spec((2,), (torch.bool,)),
            f"{block}delta": Spec(()),
            f"{block}input_values": Spec((i,)),
            f"{block}input_vectors": Spec((i, i), optional=True),
            f"{block}output_values": Spec((o,)),
            f"{block}output_vectors": Spec((o, o)),
        }

    def _entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise damaged(self.path, name, "a tensor", "no such tensor")
        return self.entries[name]

    def _admit(self, name: str, spec: Spec) -> None:
        entry = self._entry(name)
        if not spec.admits(entry):
            raise damaged(self.path, name, str(spec), str(entry))

    def _axis(self, name: str, axis: int) -> int:
        """The length of an axis, at least 1."""
        shape = self._entry(name).shape
        if len(shape) <= axis or shape[axis] < 1:
            raise damaged(self.path, name, f"an axis {axis} of length ≥ 1", f"the shape {shape}")
        return shape[axis]
