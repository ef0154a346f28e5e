"""The result of a kernel computation: in memory, or in a file that is mapped block by block."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from types import TracebackType
from uuid import uuid4

import torch
from torch import Tensor

from dnn2gp.support.files import check_place
from dnn2gp.support.memory import require


class KernelBuffer:
    """A tensor that is written block by block. A file is never in memory as a whole, and appears when it is complete.

    The file is mapped anew for each block, so that only the pages of one block are in memory.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, out: Path | None, budget: int, what: str
    ) -> None:
        """In memory, if it fits into the budget, or in the file `out`."""
        self.shape, self.dtype, self.out = shape, dtype, None if out is None else check_place(Path(out))
        size = prod(shape) * dtype.itemsize
        self.bytes = 0 if out is not None else size
        self._values: Tensor | None = None
        if self.out is None:
            instead = "Take fewer inputs at a time, the trace or diagonal kernel, or out=FILE for a result on disk."
            require(size, budget, f"{what} of {' × '.join(map(str, shape))}", instead)
            self._values = torch.empty(shape, dtype=dtype, device=device)
        else:
            self._part = self.out.with_name(f".dnn2gp-{uuid4().hex}")

    def __enter__(self) -> KernelBuffer:
        """Reserve the disk space, so that a full disk fails here."""
        if self.out is not None:
            try:
                self._allocate()
            except BaseException:
                self._part.unlink(missing_ok=True)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        """Move the complete file to its place, or remove it if the work failed."""
        if self.out is None:
            return
        try:
            if kind is None:
                os.replace(self._part, self.out)
        finally:
            self._part.unlink(missing_ok=True)

    def write(self, rows: slice, columns: slice, block: Tensor, axis: int, mirrored: bool) -> None:
        """Write a block at (rows, columns), and if `mirrored` its transpose at (columns, rows)."""
        values = self._mapped(self._part) if self._values is None else self._values
        if axis == 1:
            values[rows, columns] = block
            if mirrored:
                values[columns, rows] = block.transpose(0, 1)
        else:
            values[rows, :, columns] = block
            if mirrored:
                values[columns, :, rows] = block.permute(2, 3, 0, 1)

    def tensor(self) -> Tensor:
        """The result; for a file, a view of it that is read on access."""
        if self._values is not None:
            return self._values
        assert self.out is not None
        return self._mapped(self.out)

    def _allocate(self) -> None:
        size = prod(self.shape) * self.dtype.itemsize
        with self._part.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)

    def _mapped(self, path: Path) -> Tensor:
        flat = torch.from_file(str(path), shared=True, size=prod(self.shape), dtype=self.dtype)
        return flat.view(self.shape)
