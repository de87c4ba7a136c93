"""Plans and cases as a person writes them: values with commas, and one case in one text.

A case is written as its label says it: ``torch_compile:default fp16 batch 8 cuda 4 threads dynamic=true``. First the
backend, then words in any order: a precision, a device, ``batch 8`` or ``batch=8``, ``4 threads``, ``host io``,
``cold``, ``rotating``, ``depth 2``, any axis as ``AXIS=VALUE``, and the backend's own options as ``NAME=VALUE`` or
``BACKEND.NAME=VALUE``. What a label prints is understood; what it leaves out has its default.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inferlens.errors import InferlensError, suggestion
from inferlens.spec.case import AXES, split_label

OTHERS = ("input", "weights", "seed")  # what else a case may say as NAME=VALUE
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
        if name in OTHERS or any(axis.name == name for axis in AXES):
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
    while words:
        name, equals, value = words[0].partition("=")
        if equals and name and value:
            yield next((axis.name for axis in AXES if axis.flag and axis.word == name), name), value
            words = words[1:]
            continue
        texts = {size: " ".join(words[:size]) for size in (1, 2)}
        said = ((axis.name, axis.read(text), size) for size, text in texts.items() for axis in AXES)
        found = next((each for each in said if each[1] is not None), None)
        if found is None:
            known = [*(value for axis in AXES for value in axis.values), *(axis.name for axis in AXES), *OTHERS]
            raise InferlensError(
                f"'{words[0]}' is no word of a case.", expected=_FORM, hint=suggestion(words[0], known)
            )
        yield found[:2]
        words = words[found[2] :]


def listed(value: Any) -> tuple[Any, ...]:
    """A list of values, or a single one, as a tuple."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def texts(value: Any) -> tuple[str, ...]:
    """Texts from a text with commas, a list of such, or single values of another type."""
    parts = [part.strip() for item in listed(value) for part in word(item).split(",")]
    return tuple(part for part in parts if part)


def word(value: Any) -> str:
    """A value as a person would write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def known(axis: str, value: Any, values: tuple[str, ...]) -> tuple[str, ...]:
    """Texts that must all be among ``values``.

    Raises:
        InferlensError: for one that is not; near misses are suggested.
    """
    given = texts(value)
    for text in given:
        if text not in values:
            raise InferlensError(
                f"'{text}' is no {axis}.", expected=f"one of {', '.join(values)}", hint=suggestion(text, values)
            )
    return given


def counts(axis: str, value: Any) -> tuple[int, ...]:
    """Whole numbers, 1 or more."""
    return tuple(count(axis, text) for text in texts(value))


def count(axis: str, value: Any, least: int = 1) -> int:
    """A whole number.

    Raises:
        InferlensError: if it is none, or less than ``least``.
    """
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least:
        raise InferlensError(f"'{value}' is no value for {axis}.", expected=f"a whole number, {least} or more")
    return number


def flag(name: str, value: Any) -> bool:
    """True or false.

    Raises:
        InferlensError: if it is neither.
    """
    if not isinstance(value, bool):
        raise InferlensError(f"'{value}' is no value for {name}.", expected="true or false")
    return value


def option_values(value: Any) -> dict[str, tuple[str, ...]]:
    """``{"backend.option": values}`` from that form, from ``backend.option=values`` texts, or from nested tables."""
    if not isinstance(value, Mapping):
        pairs = [str(text).partition("=") for text in listed(value)]
        for name, equals, _ in pairs:
            if not equals:
                form = "BACKEND.OPTION=VALUE, as inferlens backends NAME lists them"
                raise InferlensError(f"The option '{name}' has no value.", expected=form)
        return {name.strip(): texts(values) for name, _, values in pairs}
    flat: dict[str, tuple[str, ...]] = {}
    for name, values in value.items():
        if isinstance(values, Mapping):
            flat |= {f"{name}.{option}": texts(each) for option, each in values.items()}
        else:
            flat[name] = texts(values)
    return flat
