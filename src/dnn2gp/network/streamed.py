"""Data that do not fit into memory: the examples of a Dataset, read again in every pass.

The first pass reads the targets, checks every example, and computes its checksum. Later passes verify the checksums, so
a dataset that augments at random, or whose files change, raises an error instead of giving a wrong result.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any, final

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from dnn2gp.network.batches import UNSTABLE, Data, check_alike, checked_batch, same_batch
from dnn2gp.network.checksums import checksums
from dnn2gp.network.inputs import Inputs, OnDemand, check_finite, concatenate, leaves, map_inputs, positions, take
from dnn2gp.network.source import Source
from dnn2gp.support.errors import ChangedDataError, InputError
from dnn2gp.support.memory import chunks
from dnn2gp.support.progress import track

# Data up to the first share of the memory budget are read into memory; one read takes at most the second share.
_SMALL, _AT_ONCE = 1 / 8, 1 / 32
# The most examples that are read at once, and how many first ones are kept in memory, for checks of the network.
_MOST, _KEPT = 512, 32


@final
class Streamed(OnDemand):
    """The inputs of a Dataset. Reading them again must give the same values; checksums verify this.

    Copies share the dataset. A pickle contains it.
    """

    def __init__(self, source: Source, first: Data, sums: Int[Tensor, " N"], most: int) -> None:
        """`first` are the first examples, `sums` the checksums of all, and `most` is how many to read at once."""
        self.source, self._first, self._sums, self._most = source, first, sums, most

    @property
    def form(self) -> Inputs:
        return take(self._first.inputs, slice(0, 1))

    @property
    def num_examples(self) -> int:
        return len(self._sums)

    @property
    def most(self) -> int:
        return self._most

    def __repr__(self) -> str:
        return f"Streamed({self.num_examples} examples of {type(self.source.dataset).__name__})"

    def __deepcopy__(self, memo: dict[int, object]) -> Streamed:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            content = pickle.dumps(self.source)
        except Exception as error:
            raise InputError(
                f"The GP reads its training data from a {type(self.source.dataset).__name__}, which cannot be pickled: "
                f"{error}. Define it at the top level of a module and open files on first use, or save the GP with "
                "save(gp, path), which leaves the data out."
            ) from error
        return _restored, (content, self._first, self._sums, self._most)

    @property
    def checksums(self) -> Int[Tensor, " N"]:
        return self._sums

    def read(self, index: slice | Tensor) -> Inputs:
        place = positions(index, self.num_examples)
        if len(place) == 0 or int(place.max()) < self._first.num_examples:
            return take(self._first.inputs, place)
        with closing(self.passed([place])) as found:
            return next(found)

    def passed(self, parts: Sequence[slice | Tensor]) -> Generator[Inputs, None, None]:
        places = [positions(part, self.num_examples) for part in parts]
        with closing(_batches(self.source, places)) as batches:
            for place, batch in zip(places, batches, strict=True):
                self._check(place, batch)
                yield map_inputs(torch.detach, batch.inputs)
                del batch

    def _check(self, place: Int[Tensor, " n"], batch: Data) -> None:
        check_alike(int(place[0]), self._first, batch)
        changed = checksums(batch.inputs) != self._sums[place]
        if bool(changed.any()):
            raise _changed(int(place[changed][0]))


def _restored(content: bytes, first: Data, sums: Int[Tensor, " N"], most: int) -> Streamed:
    return Streamed(pickle.loads(content), first, sums, most)


def streamed(source: Source, budget: int) -> Data | None:
    """The data, with inputs that are read on demand after a first pass over all of them; None if the data are small."""
    count = source.num_examples
    if count == 0:
        return None
    try:
        few = _one_batch(source, torch.arange(min(2, count)))
    except InputError:  # the caller then reads all batches as they are, and reports it
        return None
    each = max(1, sum(leaf.nbytes for leaf in (*leaves(few.inputs), few.targets)) // few.num_examples)
    if count * each <= _SMALL * budget:
        return None
    most = max(2, min(_MOST, int(_AT_ONCE * budget) // each))
    kept = torch.arange(min(count, most, _KEPT))
    first, again = (_one_batch(source, kept) for _ in range(2))
    check_alike(0, first, again)
    if not same_batch(first, again):
        raise ChangedDataError(UNSTABLE)
    own = Data(map_inputs(_own, first.inputs), _own(first.targets))
    targets, sums = _scanned(source, own, most)
    changed = sums[: len(kept)] != checksums(own.inputs)
    changed |= checksums(targets[: len(kept)]) != checksums(own.targets)
    if bool(changed.any()):
        raise _changed(int(changed.nonzero()[0]))
    return Data(Streamed(source, own, sums, most), targets)


def _scanned(source: Source, first: Data, most: int) -> tuple[Shaped[Tensor, "N ..."], Int[Tensor, " N"]]:
    """The targets and the checksums of all examples, from one pass in which every example is checked."""
    count = source.num_examples
    targets = first.targets.new_empty(count, *first.targets.shape[1:])
    sums = torch.empty(count, dtype=torch.int64)
    parts = list(chunks(count, most))
    with closing(_batches(source, [positions(part, count) for part in parts])) as batches:
        for part, batch in zip(parts, track(batches, "reading data", total=len(parts)), strict=True):
            check_alike(part.start, first, batch)
            check_finite(batch.inputs, part.start)
            targets[part], sums[part] = batch.targets.detach(), checksums(batch.inputs)
            del batch
    return targets, sums


def _one_batch(source: Source, place: Int[Tensor, " n"]) -> Data:
    with closing(_batches(source, [place])) as found:
        return next(found)


def _batches(source: Source, places: Sequence[Int[Tensor, " _"]]) -> Generator[Data, None, None]:
    """The examples at each of these places; each worker reads its share of them."""
    workers = max(1, source.workers.count)
    pieces = [place.split(max(1, -(-len(place) // workers))) for place in places]
    with closing(source.batches([own for several in pieces for own in several])) as batches:
        for several in pieces:
            found = [_checked(own, next(batches)) for own in several]
            yield found[0] if len(found) == 1 else _merged(found)
            del found


def _merged(batches: Sequence[Data]) -> Data:
    for batch in batches[1:]:
        check_alike(1, batches[0], batch)
    return Data(concatenate([batch.inputs for batch in batches]), torch.cat([batch.targets for batch in batches]))


def _checked(place: Int[Tensor, " n"], batch: object) -> Data:
    """A batch, which must have as many examples as were asked for."""
    found = checked_batch(int(place[0]), batch)
    if found.num_examples != len(place):
        raise InputError(
            f"data: expected a batch of {len(place)} examples, the first of which is {int(place[0])}; got one of "
            f"{found.num_examples}. collate_fn must return every example that it is given."
        )
    return found


def _changed(example: int) -> ChangedDataError:
    return ChangedDataError(
        f"data: expected the same examples in every pass over the data; example {example} differs from when it was "
        "first read. The Dataset may augment at random (switch that off), collate_fn may make an example depend on the "
        "others in its batch, or a file may have changed (convert again)."
    )


def _own(tensor: Tensor) -> Tensor:
    """A copy outside the memory that is shared with workers."""
    return tensor.detach().clone()
