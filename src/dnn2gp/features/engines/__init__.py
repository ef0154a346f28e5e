"""Engines that compute the Jacobian of a network. Start with `network_features.py`, which all of them share."""
