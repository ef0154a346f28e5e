"""Figures from numpy arrays, and the reports that contain them.

A function takes arrays and returns a matplotlib Figure: no torch, no pyplot, no global state. Start with `matrices.py`;
`report/` writes HTML pages.
"""

from dnn2gp.support.optional import needs_extra

with needs_extra("plots", "dnn2gp.plots"):
    from dnn2gp.plots.calibration import coverage, reliability
    from dnn2gp.plots.evolution import kernel_animation, kernel_strip, posterior_animation, posterior_strip
    from dnn2gp.plots.examples import uncertainty
    from dnn2gp.plots.matrices import kernel_matrix, posterior_mean, uncertainty_maps
    from dnn2gp.plots.tuning import tuning_curves

__all__ = [
    "coverage",
    "kernel_animation",
    "kernel_matrix",
    "kernel_strip",
    "posterior_animation",
    "posterior_mean",
    "posterior_strip",
    "reliability",
    "tuning_curves",
    "uncertainty",
    "uncertainty_maps",
]
