"""`dnn2gp demo`: train a small network on handwritten digits, turn it into a GP, and compare the two.

The data consists of the 1797 digits of 8 × 8 pixels that come with scikit-learn; nothing is downloaded.
"""

from dnn2gp.support.optional import needs_extra

with needs_extra("cli", "dnn2gp demo"):
    from dnn2gp.apps.demo.config import DemoConfig
    from dnn2gp.apps.demo.job import run
    from dnn2gp.apps.demo.results import DemoResult, Scores
    from dnn2gp.apps.demo.training import build_network

__all__ = ["DemoConfig", "DemoResult", "Scores", "build_network", "run"]
