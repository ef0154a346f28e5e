"""The paper's figures: data sets, networks, and one file per figure in `figures/`.

May import every room but `apps`. Start with `figures/moons.py`, the shortest figure, and `reproduce/job.py`, which runs
and draws them.
"""
