"""What the script of the page reads: matrices, orders, and the examples with all their images in one picture."""

from __future__ import annotations

import json
from base64 import b64encode
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.colors import to_hex
from PIL import Image

from dnn2gp.plots import style
from dnn2gp.plots.report.orders import orders
from dnn2gp.plots.report.section import Examples, InteractiveMap

_STEPS = 65  # colours in the scale; the script goes between them in straight lines


def map_data(shown: InteractiveMap) -> dict[str, Any]:
    """A map without its examples."""
    rows, columns = shown.values.shape
    return {
        "rows": rows,
        "columns": columns,
        "names": None if shown.columns is None else list(shown.columns),
        "values": base64(shown.values.astype("<f4").tobytes()),
        "limit": limit(shown.values),
        "scale": shown.scale,
        "colours": diverging(),
        "orders": {name: order.tolist() for name, order in orders(shown).items()},
    }


def examples_data(examples: Examples) -> dict[str, Any]:
    """What the panel beside a map shows of an example, and the colours of the classes."""
    picture = sprite(examples.images)
    return {
        "sprite": png_address(picture),
        "height": examples.images.shape[1],
        "width": examples.images.shape[2],
        "across": across(len(examples)),
        "classes": list(examples.classes),
        "colours": class_colours(len(examples.classes)),
        "labels": examples.labels.tolist(),
        "predictions": examples.predictions.tolist(),
        "probabilities": _rounded(examples.probabilities),
        "epistemic": _rounded(examples.epistemic),
        "aleatoric": _rounded(examples.aleatoric),
    }


def sprite(images: UInt8[np.ndarray, "N H W *colour"]) -> UInt8[np.ndarray, "height width *colour"]:
    """All images in one, line by line, `across` in a line; what is left of the last line is black."""
    count, height, width, *colour = images.shape
    wide = across(count)
    high = -(-count // wide)
    filled = np.zeros((high * wide, height, width, *colour), dtype=np.uint8)
    filled[:count] = images
    grid = filled.reshape(high, wide, height, width, *colour)
    return np.ascontiguousarray(grid.swapaxes(1, 2)).reshape(high * height, wide * width, *colour)


def across(count: int) -> int:
    """How many images there are in a line of the sprite: ⌈√N⌉."""
    return int(np.ceil(np.sqrt(count)))


def limit(values: Float[np.ndarray, "N K"]) -> float:
    """Where the colours end: the 99th percentile of |values|, their maximum if that is 0, and 1 if all are 0."""
    sizes = np.abs(values.astype(np.float64))
    return float(np.percentile(sizes, 99)) or float(sizes.max()) or 1.0


def diverging() -> list[list[Any]]:
    """The diverging colours of all pictures as pairs of place and colour, from 0 to 1."""
    table = matplotlib.colormaps[style.DIVERGING]
    return [[float(place), to_hex(table(place))] for place in np.linspace(0, 1, _STEPS)]


def class_colours(count: int) -> list[str]:
    """The colours of the classes in all pictures."""
    table = style.class_colours(count)
    return [to_hex(table(i)) for i in range(count)]


def png_address(picture: UInt8[np.ndarray, "height width *colour"]) -> str:
    """A picture as a PNG, as an address that holds it."""
    written = BytesIO()
    Image.fromarray(picture).save(written, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64(written.getvalue())}"


def base64(content: bytes) -> str:
    """Bytes as text."""
    return b64encode(content).decode("ascii")


def script_json(data: dict[str, Any]) -> str:
    """JSON that cannot end the <script> it is put into."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _rounded(numbers: Float[np.ndarray, " N"]) -> list[float]:
    """With six digits, as the panel shows them."""
    return [float(f"{number:.6g}") for number in numbers.tolist()]
