"""The paper's figures: data sets, networks, and one module per figure in `figures/`.

May import every room but `apps`. Start with `figures/moons.py`, a short figure, then `figure.py`, which says what a
figure is, and `reproduce.py`, which runs them all.
"""

from dnn2gp.support.optional import needs_extra

with needs_extra("paper", "dnn2gp.paper"):
    import joblib  # noqa: F401
    import matplotlib  # noqa: F401
    import rich  # noqa: F401
    import sklearn  # noqa: F401
