"""One case in one text, as its label says it: ``torch_compile:default fp16 batch 8 cuda 4 threads dynamic=true``.

First the backend, then words in any order: a precision, a device, ``batch 8`` or ``batch=8``, ``4 threads``, ``host
io``, ``cold``, ``rotating``, ``depth 2``, any axis as ``AXIS=VALUE``, and the backend's own options as ``NAME=VALUE``
or ``BACKEND.NAME=VALUE``. What a label prints is understood; what it leaves out has its default.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from inferlens.errors import InferlensError, suggestion
from inferlens.spec.case import DEVICES, IO, PRECISIONS, QUANTIZED, split_label

AXES = ("precision", "batch", "device", "threads", "io", "depth", "input", "weights", "seed")
_FLAGS = {"cold": "cold", "rotate": "rotate", "rotating": "rotate"}
_FORM = "a backend, then words such as fp16, batch=8, threads=1, cuda or an option of the backend as NAME=VALUE"


def words_of(text: str, backends: Sequence[str]) -> dict[str, Any]:
    """The words of a plan that a case's text means.

    Args:
        text: the case.
        backends: all backends that there are.

    Raises:
        InferlensError: if it does not begin with a backend, or a word means nothing or is said twice.
    """
    label, *rest = _split(text)
    backend, _ = split_label(label, backends)
    words: dict[str, Any] = {"backend": label, "option": {}}
    for name, value in _named(rest):
        if name in AXES or name in _FLAGS.values():
            said, key = words, name
        else:
            said, key = words["option"], name if "." in name else f"{backend}.{name}"
        if key in said:
            raise InferlensError(f"'{text}' says {name} twice.", expected="one value: it is one case")
        said[key] = value
    return words


def _split(text: str) -> list[str]:
    """Words of a text; quotation marks keep those together that belong together."""
    try:
        words = [word for word in (each.rstrip(",") for each in shlex.split(text)) if word]
    except ValueError as error:
        raise InferlensError(f"'{text}' has a quotation mark without its other.", expected=_FORM) from error
    if not words:
        raise InferlensError("A case is described by nothing.", expected=_FORM)
    return words


def _named(words: list[str]) -> Iterator[tuple[str, Any]]:
    """Name and value of each word; two of them for an axis that is said in two words."""
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if equals and name and value:
            yield _FLAGS.get(name, name), value
        elif word in (*PRECISIONS, *QUANTIZED):
            yield "precision", word
        elif word in DEVICES:
            yield "device", word
        elif word in _FLAGS:
            yield _FLAGS[word], True
        elif word in ("batch", "depth") and left and left[0].isdecimal():
            yield word, left.pop(0)
        elif word.isdecimal() and left and left[0] in ("thread", "threads"):
            left.pop(0)
            yield "threads", word
        elif word in IO and left and left[0] == "io":
            left.pop(0)
            yield "io", word
        else:
            known = (*PRECISIONS, *QUANTIZED, *DEVICES, *_FLAGS, *AXES)
            raise InferlensError(f"'{word}' is no word of a case.", expected=_FORM, hint=suggestion(word, known))
