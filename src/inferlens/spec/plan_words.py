"""Values of a plan as a person writes them: single values, lists, or texts with commas; in a file, or as an option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferlens.errors import InferlensError, suggestion


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
                form = "BACKEND.OPTION=VALUE, such as onnxruntime.graph_optimization=all,basic"
                raise InferlensError(f"The option '{name}' has no value.", expected=form)
        return {name.strip(): texts(values) for name, _, values in pairs}
    flat: dict[str, tuple[str, ...]] = {}
    for name, values in value.items():
        if isinstance(values, Mapping):
            flat |= {f"{name}.{option}": texts(each) for option, each in values.items()}
        else:
            flat[name] = texts(values)
    return flat
