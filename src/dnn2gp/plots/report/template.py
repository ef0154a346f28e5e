"""The one HTML generator: Jinja2 templates with autoescape, rendered into a single file that needs no network.

A page is a template that extends `layout.html.j2`. The templates of this package are available to all pages; a page of
another package brings its own in a folder `templates`.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from dataclasses import dataclass

from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

_OWN = "dnn2gp.plots.report"
_SCREEN_DPI = 96  # of a browser's pixels


@dataclass(frozen=True)
class Image:
    """A PNG as the attributes of an <img>."""

    source: str
    """A data: address that holds the whole picture."""
    width: int
    height: int


def render(template: str, package: str = _OWN, **values: object) -> str:
    """The page of a template in the folder `templates` of `package`. Every value that is not `Markup` is escaped."""
    loaders: list[BaseLoader] = [PackageLoader(name) for name in dict.fromkeys((package, _OWN))]
    environment = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {"image": image, "duration": duration, "plain": plain}
    environment.globals["resource"] = lambda name: Markup(loaders[-1].get_source(environment, name)[0])
    return environment.get_template(template).render(values)


def image(png: bytes, dpi: int) -> Image:
    """A PNG that was drawn with `dpi` dots per inch, shown in the size in which it was drawn."""
    width, height = (round(size * _SCREEN_DPI / dpi) or 1 for size in struct.unpack(">II", png[16:24]))
    return Image(png_address(png), width, height)


def png_address(png: bytes) -> str:
    """A data: address that holds the PNG."""
    return f"data:image/png;base64,{b64encode(png).decode('ascii')}"


def duration(seconds: float) -> str:
    """A time in words: 0.4 s, 12 s, 3 min 05 s, 1 h 02 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def plain(value: object) -> str:
    """The value of a setting: text as it is, a flat list with commas, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and not any(isinstance(each, (list, tuple, dict)) for each in value):
        return ", ".join(str(each) for each in value)
    return json.dumps(value, ensure_ascii=False, default=str)
