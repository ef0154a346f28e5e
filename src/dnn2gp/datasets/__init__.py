"""Data of the paper: read from a folder, else downloaded from the public source, whole or not at all."""

from dnn2gp.datasets.images import Images, load_images

__all__ = ["Images", "load_images"]
