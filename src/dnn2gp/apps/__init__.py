"""What runs from the command line: `dnn2gp demo`, `tune`, `train` and `reproduce`.

May import every other room. Start with `cli/main.py`.
"""
