"""The memory budget: chunk sizes, plans, and results that are larger than the memory. Start with `chunked.py`."""
