"""The paper's data sets: read from a folder, or downloaded atomically from their public source."""

from dnn2gp.paper.datasets.images import Images, load_images
from dnn2gp.paper.datasets.snelson import load_snelson
from dnn2gp.paper.datasets.synthetic import Draws, generate_draws, synthetic_draws
from dnn2gp.paper.datasets.toys import bent_clouds, half_moons
from dnn2gp.paper.datasets.wine import wine_splits

__all__ = [
    "Draws",
    "Images",
    "bent_clouds",
    "generate_draws",
    "half_moons",
    "load_images",
    "load_snelson",
    "synthetic_draws",
    "wine_splits",
]
