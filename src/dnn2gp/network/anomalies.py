"""A derivative that is NaN, as torch's anomaly detection finds it, in the words of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dnn2gp.support.errors import NetworkError


@contextmanager
def anomalies_explained() -> Iterator[None]:
    """Turn the RuntimeError that `torch.autograd.detect_anomaly` raises in the block into a `NetworkError`."""
    try:
        yield
    except RuntimeError as error:
        if not (torch.is_anomaly_enabled() and "returned nan values" in str(error)):
            raise
        raise NetworkError(
            f"network: expected a derivative that is a number at every input; got NaN ({error}), as detect_anomaly "
            "found. Look for operations with an infinite slope, such as sqrt or norm at 0, and add a small number to "
            "their argument; or leave out the inputs at which this happens."
        ) from error
