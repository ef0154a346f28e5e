"""What every other room stands on: errors, whole files, progress, randomness and the memory budget.

Imports nothing of dnn2gp. Start with `errors.py`: the exceptions and warnings that users see.
"""
