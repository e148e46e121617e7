"""The images of a report, as many as fit: mistakes and right answers with their heat maps, training images."""

import base64
import io
from typing import TYPE_CHECKING, Any

from conveyor.report.inputs import Example, Run

if TYPE_CHECKING:
    from PIL import Image

SIDE = 96
"""Pixels of the longer side of a shown image."""
TINY = 40
"""Up to this side an image is shown with its pixels as squares."""
RAMP = ("#25317e", "#f0b43c", "#e2331f")
"""Colours of a heat map from no evidence to the most."""


def sheets(run: Run, budget: int) -> dict[str, Any]:
    """Lists of images for the template within `budget` bytes; those with heat maps come first."""
    names = run.confusion.classes if run.confusion else run.labels.get("classes", [])
    left = budget
    made: dict[str, Any] = {"mapped": [], "right": [], "augmented": [], "mistakes": []}
    mapped = [one for one in run.mistakes if one.heat]
    plain = [one for one in run.mistakes if not one.heat]
    for kind, examples in (("mapped", mapped), ("right", run.right), ("augmented", run.augmented), ("mistakes", plain)):
        for example in examples:
            shown = _shown(example, names)
            left -= sum(len(shown[part]) for part in ("source", "heat")) if shown else 0
            if left < 0:
                return made
            if shown:
                made[kind].append(shown)
    return made


def _shown(example: Example, names: list[str]) -> dict[str, Any] | None:
    from PIL import Image

    try:
        with Image.open(example.path) as image:
            small = image.convert("RGB")
    except (
        OSError,
        ValueError,
        SyntaxError,
        Image.DecompressionBombError,
    ):  # what the library raises for damaged files
        return None
    small.thumbnail((SIDE, SIDE))
    labels = [f"{_name(names, label)} {100 * share:.0f}\u00a0%" for label, share in example.labels if share >= 0.005]
    return {
        "source": data_uri(small, "WEBP", quality=82, method=4),
        "heat": data_uri(_heated(small, example.heat), "WEBP", quality=82, method=4) if example.heat else "",
        "tiny": max(small.size) <= TINY,
        "label": _name(names, example.labels[0][0]) if len(labels) == 1 else ", ".join(labels),
        "predicted": _name(names, example.predicted),
        "confidence": f"{100 * example.confidence:.0f} %" if example.confidence else "",
        "after": example.update,
    }


def _heated(image: "Image.Image", heat: list[list[int]]) -> "Image.Image":
    """The image in grey under its heat map in colours."""
    from PIL import Image, ImageOps

    factor = max(1, SIDE // max(image.size))
    size = (image.width * factor, image.height * factor)
    values = bytes(max(0, min(255, value * 255 // 100)) for row in heat for value in row)
    spread = Image.frombytes("L", (len(heat[0]), len(heat)), values).resize(size, Image.Resampling.BICUBIC)
    grey = image.convert("L").resize(size, Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BILINEAR)
    low, middle, high = RAMP
    return Image.blend(grey.convert("RGB"), ImageOps.colorize(spread, black=low, mid=middle, white=high), 0.55)


def data_uri(image: "Image.Image", form: str, **how: Any) -> str:
    """An image as part of a page: the text for `src`."""
    buffer = io.BytesIO()
    image.save(buffer, form, **how)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _name(names: list[str], index: int) -> str:
    return names[index] if 0 <= index < len(names) else f"class {index}"
