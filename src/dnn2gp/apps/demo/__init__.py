"""The main job from end to end: train a small network on handwritten digits, turn it into a GP, look at what it knows.

The data are scikit-learn's 1797 digits of 8 × 8 pixels, which come with it: nothing is downloaded.
"""

from dnn2gp.support.optional import needs_extra

with needs_extra("cli", "dnn2gp demo"):
    from dnn2gp.apps.demo.config import DemoConfig
    from dnn2gp.apps.demo.job import run
    from dnn2gp.apps.demo.results import DemoResult, Scores
    from dnn2gp.apps.demo.training import build_network

__all__ = ["DemoConfig", "DemoResult", "Scores", "build_network", "run"]
