"""Text drawn with Pillow's own font, for the networks of ``rapidocr-onnxruntime`` that find, turn and read it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import scipy.ndimage
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from benchmarks.trained import carried

Array = np.ndarray[Any, Any]
Infer = Callable[[Array], list[Array]]
Box = tuple[float, ...]  # left, top, right, bottom
WORDS = (
    "invoice total amount due March April Tuesday receipt number street garden window river mountain paper signal "
    "engine thousand quickly bright yellow summer winter coffee market station platform ticket doctor library Kitchen "
    "Boston Vienna Lisbon Madrid Oxford Geneva Nordic Pacific express delivery customer account balance payment order"
)
LINE = (48, 320)  # what is read: a line of text, cut out
TURNED = 192  # the width of what may be upside down
PAGE = (256, 320)  # what text is found on


def prepared(image: Image.Image) -> Array:
    """As RapidOCR feeds its networks: from -1 to 1, channels first, blue first."""
    pixels = np.asarray(image, np.float32)[..., ::-1].transpose(2, 0, 1)
    return np.ascontiguousarray((pixels / 255 - 0.5) / 0.5)


def lines(seed: int, count: int, width: int = LINE[1], *, turned: bool = False) -> tuple[Array, list[str]]:
    """So many lines of text, and what stands there; every second one upside down if they are ``turned``."""
    drawn, said = [], []
    for place in range(count):
        chance = random.Random(seed * 1000 + place)
        text = _text(chance)
        font = ImageFont.load_default(chance.uniform(24, 34))
        paper, ink = _colours(chance)
        while font.getlength(text) > width - 12:
            text = text.rpartition(" ")[0]
        image = Image.new("RGB", (int(font.getlength(text)) + 12, LINE[0]), paper)
        ImageDraw.Draw(image).text((6, 24), text, ink, font, anchor="lm")
        line = prepared(_photographed(image, chance))
        line = line[:, ::-1, ::-1] if turned and place % 2 else line
        drawn.append(np.pad(line, ((0, 0), (0, 0), (0, width - line.shape[2]))))
        said.append(text)
    return np.stack(drawn), said


def pages(seed: int, count: int) -> tuple[Array, list[list[Box]]]:
    """So many pages with some lines of text, and the boxes around these."""
    drawn, boxes = [], []
    for place in range(count):
        chance = random.Random(seed * 1000 + place)
        paper, ink = _colours(chance)
        image = Image.new("RGB", PAGE[::-1], paper)
        boxes.append([])
        top = chance.uniform(8, 30)
        while True:
            font = ImageFont.load_default(chance.uniform(14, 30))
            text = _text(chance)
            where = (chance.uniform(6, 60), top)
            while " " in text and where[0] + font.getlength(text) > PAGE[1] - 6:
                text = text.rpartition(" ")[0]
            around = ImageDraw.Draw(image).textbbox(where, text, font)
            if around[3] > PAGE[0] - 6:
                break
            ImageDraw.Draw(image).text(where, text, ink, font)
            boxes[-1].append(tuple(map(float, around)))
            top = around[3] + chance.uniform(8, 30)
        drawn.append(prepared(_photographed(image, chance)))
    return np.stack(drawn), boxes


def read(scores: Array, characters: list[str]) -> list[str]:
    """The text that the network reads: the likeliest character of each column, repeated ones and blanks left out."""
    texts = []
    for row in scores.argmax(-1):
        kept = [now for before, now in zip([0, *row], row, strict=False) if now not in (0, before)]
        texts.append("".join((*characters, " ")[item - 1] for item in kept))
    return texts


def boxes_in(score: Array) -> list[Box]:
    """The boxes that the network finds: it marks the middle of each line, which is widened as RapidOCR does."""
    marked, _ = scipy.ndimage.label(score > 0.3)
    boxes = []
    for place, (rows, columns) in enumerate(scipy.ndimage.find_objects(marked)):
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if min(height, width) >= 3 and score[marked == place + 1].mean() > 0.5:
            wider = 1.6 * height * width / (2 * (height + width))
            boxes.append((columns.start - wider, rows.start - wider, columns.stop + wider, rows.stop + wider))
    return boxes


def overlap(one: Box, other: Box) -> float:
    """The area that two boxes share, of the area that either covers."""
    left, top = max(one[0], other[0]), max(one[1], other[1])
    right, bottom = min(one[2], other[2]), min(one[3], other[3])
    shared = max(0.0, right - left) * max(0.0, bottom - top)
    area = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return shared / (sum(area) - shared)


def right_boxes(found: list[Box], known: list[Box]) -> float:
    """The F-score of boxes: one is right where it covers half of what it and a known one cover together."""
    hits = sum(any(overlap(box, item) > 0.5 for item in found) for box in known)
    return 2 * hits / (len(found) + len(known))


def evaluate_reading(infer: Infer, count: int = 256) -> list[float]:
    """Whether each line is read as it was written, blanks around it aside; for ``--accuracy``."""
    images, written = lines(2, count)
    scores = (infer(image[None])[0] for image in images)
    return [float(read(score, characters())[0].strip() == text) for score, text in zip(scores, written, strict=True)]


def evaluate_finding(infer: Infer, count: int = 128) -> list[float]:
    """How right the boxes of each page are; for ``--accuracy``."""
    images, known = pages(2, count)
    scores = (infer(image[None])[0] for image in images)
    return [right_boxes(boxes_in(score[0, 0]), boxes) for score, boxes in zip(scores, known, strict=True)]


def network(task: str) -> Path:
    """The file of RapidOCR's network that finds (``det``), reads (``rec``), or tells what is upside down (``cls``)."""
    return next((carried("rapidocr_onnxruntime") / "models").glob(f"*_{task}_infer.onnx"))


@functools.cache
def characters() -> list[str]:
    """Those that the network reads, which its file names."""
    properties = onnx.load(str(network("rec")), load_external_data=False).metadata_props
    return next(item.value for item in properties if item.key == "character").splitlines()


def _text(chance: random.Random) -> str:
    number = chance.choice(
        [f"{chance.uniform(1, 999):.2f}", f"{chance.randint(1, 9999)}", f"No.{chance.randint(1, 99)}"]
    )
    words = [*chance.sample(WORDS.split(), 2), number]
    chance.shuffle(words)
    return " ".join(words)


def _colours(chance: random.Random) -> tuple[Any, Any]:
    paper = tuple(chance.randint(150, 255) for _ in range(3))
    ink = tuple(chance.randint(0, 90) for _ in range(3))
    return (paper, ink) if chance.random() < 0.8 else (ink, paper)


def _photographed(image: Image.Image, chance: random.Random) -> Image.Image:
    """A little blurred, turned and noisy."""
    corner = image.getpixel((0, 0))
    turned = image.rotate(chance.uniform(-1, 1), Image.Resampling.BILINEAR, fillcolor=corner)
    blurred = turned.filter(ImageFilter.GaussianBlur(chance.uniform(0, 0.8)))
    noise = np.random.default_rng(chance.randint(0, 1 << 30)).normal(0, 8, (*image.size[::-1], 3))
    return Image.fromarray(np.clip(np.asarray(blurred) + noise, 0, 255).astype(np.uint8))
