"""Memory: how large chunks may be, what a computation will need, and results too large for memory."""
