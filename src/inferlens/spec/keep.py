"""Layers that stay as they are in a model that is quantized, as ``fp32:head,features.0``: how a person writes them.

A layer is named by its module's path where the model is one of PyTorch's, and by its node's name in an ONNX graph; the
path of a module means all that is in it. A precision holds for the names after it, up to the next one.
"""

from __future__ import annotations

from collections.abc import Iterable

from inferlens.errors import InferlensError, Unsupported, one_of, suggestion
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case

EXPORTED = ("node_", "/")  # how the names of nodes begin that PyTorch's exporters write
WORD = 80  # letters of a word of a command: a line can only end between words
_FORM = "PRECISION:LAYER,LAYER, such as fp32:head,features.0"


def keep_of(texts: Iterable[str]) -> str:
    """Layers as a case has them: by precision, each once, in order. Raises InferlensError for another form."""
    found: dict[str, set[str]] = {}
    for text in texts:
        precision = ""
        for word in filter(None, (part.strip() for part in text.split(","))):
            head, colon, rest = word.partition(":")
            if colon and head in (*PRECISIONS, *QUANTIZED):
                precision, word = head, rest
            if precision not in PRECISIONS or not word or any(char.isspace() for char in word):
                raise InferlensError(f"'{text[:100]}' does not say which layers to keep.", expected=_FORM)
            found.setdefault(precision, set()).add(word)
    layers = [layer for names in found.values() for layer in names]
    for layer in layers:
        if layers.count(layer) > 1:
            raise InferlensError(f"The layer '{layer}' is to be kept in two precisions.", expected="one for each layer")
    return ",".join(f"{item}:{','.join(sorted(found[item]))}" for item in PRECISIONS if item in found)


def kept(case: Case) -> dict[str, str]:
    """The layers that a case keeps, each with its precision."""
    found, precision = {}, ""
    for word in filter(None, case.keep.split(",")):
        head, colon, rest = word.partition(":")
        if colon and head in PRECISIONS:
            precision, word = head, rest
        found[word] = precision
    return found


def keep_words(case: Case) -> list[str]:
    """The layers that a case keeps as values of ``--keep``: several, where one would not fit on a line."""
    words: list[str] = []
    for layer, precision in kept(case).items():
        if words and words[-1].startswith(f"{precision}:") and len(words[-1]) + len(layer) < WORD:
            words[-1] += f",{layer}"
        else:
            words.append(f"{precision}:{layer}")
    return words


def keep_refusal(case: Case, keeps: tuple[str, ...], precision: str) -> Unsupported | None:
    """Why a case cannot keep its layers in one of ``keeps``; ``None`` if it can, or keeps none.

    ``precision`` is that of the model as it is given.
    """
    if case.keep and precision in QUANTIZED:
        return Unsupported("The model is quantized already, so no layer can stay as it was.", hint="without --keep")
    asked = sorted({*kept(case).values()} - {*keeps})
    if not asked:
        return None
    if not keeps:
        return Unsupported(f"{case.backend_label} quantizes whole models on {case.device}.", hint="without --keep")
    what = f"{case.backend_label} keeps no layers in {asked[0]} on {case.device}."
    return Unsupported(what, expected=one_of(keeps), hint=f"--keep {keeps[0]}:LAYER")


def check_kept(case: Case, known: Iterable[str]) -> None:
    """Refuses a layer to keep that is none of the ``known``."""
    known = list(known)
    for layer in kept(case):
        if layer not in known:
            raise unknown_layer(layer, known)


def unknown_layer(name: str, known: Iterable[str]) -> Unsupported:
    """That a model has no such layer, with the names that are most like it."""
    known = [item for item in known if item]
    near = suggestion(name, known) or f"a name such as {known[0]}" if known else ""
    return Unsupported(f"There is no layer '{name}' to keep.", expected="names as inferlens profile shows", hint=near)
