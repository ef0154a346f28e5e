"""Reports: single HTML files with pictures, claims and interactive maps.

Start with `page.py`, the report of the paper's figures; `template.py` renders the pages of this and other packages.
"""

from dnn2gp.support.optional import needs_extra

with needs_extra("plots", "dnn2gp.plots.report"):
    from dnn2gp.plots.report.page import html
    from dnn2gp.plots.report.section import Examples, InteractiveMap, Section

__all__ = ["Examples", "InteractiveMap", "Section", "html"]
