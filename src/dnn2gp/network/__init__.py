"""A `torch.nn.Module` as the pure function f_w(x) of its flat weights, and the data it is evaluated on.

May import `support`. Start with `network.py` (the function), then `data.py` and `inputs.py` (what users may pass in).
"""

from dnn2gp.network.network import Network

__all__ = ["Network"]
