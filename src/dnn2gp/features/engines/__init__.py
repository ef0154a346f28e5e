"""Engines: how the Jacobian of a network is made. Start with `network_features.py`, which all of them share."""
