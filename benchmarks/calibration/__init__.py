"""Does the GP of an ordinary network predict better than the network? See docs/calibration.md."""
