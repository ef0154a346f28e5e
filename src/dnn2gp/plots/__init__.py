"""Pictures: plain numpy arrays in, a matplotlib Figure out. No torch, no pyplot, nothing global."""

from dnn2gp.plots.examples import uncertainty
from dnn2gp.plots.matrices import kernel_matrix, posterior_mean, uncertainty_maps

__all__ = ["kernel_matrix", "posterior_mean", "uncertainty", "uncertainty_maps"]
