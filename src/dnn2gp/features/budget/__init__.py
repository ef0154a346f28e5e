"""The memory budget: the size of chunks, plans, and results larger than the memory. Start with `chunked.py`."""
