"""Inputs derived from others that are read on demand: in another form, with a column, joined, or a part of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import accumulate
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from dnn2gp.network.checksums import checksums
from dnn2gp.network.inputs import (
    Inputs,
    OnDemand,
    concatenate,
    leaves,
    num_examples,
    passed,
    positions,
    rebuilt,
    repack,
    take,
)
from dnn2gp.support.errors import InputError


@final
@dataclass(frozen=True, eq=False)
class Converted(OnDemand):
    """The same examples in the container and on the device of `example`."""

    inputs: OnDemand
    example: Inputs

    @property
    def form(self) -> Inputs:
        return self.example

    @property
    def num_examples(self) -> int:
        return self.inputs.num_examples

    @property
    def most(self) -> int:
        return self.inputs.most

    @property
    def checksums(self) -> Int[Tensor, " N"]:
        return self.inputs.checksums

    def read(self, index: slice | Tensor) -> Inputs:
        return self._converted(self.inputs.read(index))

    def passed(self, parts: Sequence[slice | Tensor]) -> Generator[Inputs, None, None]:
        with closing(passed(self.inputs, parts)) as several:
            for part in several:
                yield self._converted(part)

    def _converted(self, inputs: Inputs) -> Inputs:
        found = repack(inputs, self.example)
        assert found is not None
        pairs = zip(leaves(found), leaves(self.example), strict=True)
        return rebuilt([leaf.to(like.device, non_blocking=leaf.is_pinned()) for leaf, like in pairs], self.example)


@final
@dataclass(frozen=True, eq=False)
class Beside(OnDemand):
    """The tensors of each example as a tuple, followed by its row of a column that is in memory."""

    inputs: OnDemand
    column: Tensor

    @property
    def form(self) -> Inputs:
        return (*leaves(self.inputs.form), self.column[:1])

    @property
    def num_examples(self) -> int:
        return self.inputs.num_examples

    @property
    def most(self) -> int:
        return self.inputs.most

    @property
    def checksums(self) -> Int[Tensor, " N"]:
        return self.inputs.checksums

    def read(self, index: slice | Tensor) -> Inputs:
        return (*leaves(self.inputs.read(index)), self.column[index])

    def passed(self, parts: Sequence[slice | Tensor]) -> Generator[Inputs, None, None]:
        with closing(passed(self.inputs, parts)) as several:
            for part, own in zip(parts, several, strict=True):
                yield (*leaves(own), self.column[part])


@final
@dataclass(frozen=True, eq=False)
class Joined(OnDemand):
    """The examples of several inputs of the same form, at least one of which is read on demand."""

    pieces: tuple[Inputs, ...]

    @property
    def form(self) -> Inputs:
        first = self.pieces[0]
        return first.form if isinstance(first, OnDemand) else take(first, slice(0, 1))

    @property
    def num_examples(self) -> int:
        return sum(map(num_examples, self.pieces))

    @property
    def most(self) -> int:
        return min(piece.most for piece in self.pieces if isinstance(piece, OnDemand))

    @property
    def checksums(self) -> Int[Tensor, " N"]:
        return torch.cat([checksums(piece) for piece in self.pieces])

    def read(self, index: slice | Tensor) -> Inputs:
        index = positions(index, self.num_examples)
        if len(index) == 0:
            return take(self.form, slice(0, 0))
        found, order = [], []
        for piece, place in zip(self.pieces, self._ranges(), strict=True):
            own = ((place.start <= index) & (index < place.stop)).nonzero()[:, 0]
            if len(own):
                found.append(take(piece, index[own] - place.start))
                order.append(own)
        return found[0] if len(found) == 1 else take(concatenate(found), torch.cat(order).argsort())

    def passed(self, parts: Sequence[slice | Tensor]) -> Generator[Inputs, None, None]:
        slices = [part for part in parts if isinstance(part, slice)]
        if len(slices) < len(parts):
            yield from map(self.read, parts)
            return
        with ExitStack() as stack:
            shares = [[_within(part, own) for part in slices] for own in self._ranges()]
            passes = [
                stack.enter_context(closing(passed(piece, [part for part in own if part.start < part.stop])))
                for piece, own in zip(self.pieces, shares, strict=True)
            ]
            for parts_of in zip(*shares, strict=True):
                found = [next(own) for own, part in zip(passes, parts_of, strict=True) if part.start < part.stop]
                yield found[0] if len(found) == 1 else concatenate(found)

    def _ranges(self) -> list[range]:
        """The places of each piece's examples."""
        stops = list(accumulate(map(num_examples, self.pieces)))
        return [range(start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=True)]


@final
@dataclass(frozen=True, eq=False)
class Share(OnDemand):
    """Consecutive examples of other inputs: those of one of several processes."""

    inputs: OnDemand
    own: slice

    @property
    def form(self) -> Inputs:
        return self.inputs.form

    @property
    def num_examples(self) -> int:
        return self.own.stop - self.own.start

    @property
    def most(self) -> int:
        return self.inputs.most

    @property
    def checksums(self) -> Int[Tensor, " N"]:
        return self.inputs.checksums[self.own]

    def read(self, index: slice | Tensor) -> Inputs:
        return self.inputs.read(self._moved(index))

    def passed(self, parts: Sequence[slice | Tensor]) -> Generator[Inputs, None, None]:
        with closing(passed(self.inputs, [self._moved(part) for part in parts])) as several:
            yield from several

    def _moved(self, index: slice | Tensor) -> slice | Tensor:
        """The same examples, counted from the first example of all processes."""
        if isinstance(index, slice) and index.step in (None, 1):
            start, stop, _ = index.indices(self.num_examples)
            return slice(self.own.start + start, self.own.start + max(start, stop))
        return positions(index, self.num_examples) + self.own.start


@final
@dataclass(frozen=True, eq=False)
class Absent(OnDemand):
    """The inputs of a GP whose file does not contain them, apart from the first ones."""

    first: Inputs
    sums: Int[Tensor, " N"]

    @property
    def form(self) -> Inputs:
        return take(self.first, slice(0, 1))

    @property
    def num_examples(self) -> int:
        return len(self.sums)

    @property
    def most(self) -> int:
        return self.num_examples

    @property
    def checksums(self) -> Int[Tensor, " N"]:
        return self.sums

    def read(self, index: slice | Tensor) -> Inputs:
        place = positions(index, self.num_examples)
        if len(place) and int(place.max()) >= num_examples(self.first):
            raise InputError(
                "data: this GP was loaded without its training inputs, which did not fit into memory when it was "
                "saved. This call needs them: use load(path, network, data=...) with the data of convert."
            )
        return take(self.first, place)

    def passed(self, parts: Sequence[slice | Tensor]) -> Generator[Inputs, None, None]:
        yield from map(self.read, parts)


def share_of(inputs: Inputs, own: slice) -> Inputs:
    """Consecutive examples, in memory if all of them are."""
    return Share(inputs, own) if isinstance(inputs, OnDemand) else take(inputs, own)


def joined(pieces: Sequence[Inputs]) -> Inputs:
    """One set of inputs from several of the same form, in memory if all of them are."""
    if any(isinstance(piece, OnDemand) for piece in pieces):
        return Joined(tuple(pieces))
    return concatenate(pieces)


def _within(part: slice, own: range) -> slice:
    """The part of `own` that is in a slice, counted from the start of `own`; it may be empty."""
    start = max(part.start, own.start)
    return slice(start - own.start, max(start, min(part.stop, own.stop)) - own.start)
