"""What runs from the command line: `dnn2gp demo`, `train`, `tune` and `reproduce`.

May import every other room. Start with `cli.py`.
"""
