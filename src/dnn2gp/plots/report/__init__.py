"""The report of a run: one HTML file with pictures, claims beside what was measured, and maps to point at."""

from dnn2gp.support.optional import needs_extra

with needs_extra("plots", "dnn2gp.plots.report"):
    from dnn2gp.plots.report.page import html
    from dnn2gp.plots.report.section import Examples, InteractiveMap, Section

__all__ = ["Examples", "InteractiveMap", "Section", "html"]
