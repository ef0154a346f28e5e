"""What every other room builds on: errors, optional packages, files, progress, random numbers and the memory budget.

Imports no other room. Start with `errors.py`: the exceptions and warnings that users see.
"""
