"""Results that Python shows: in a line, as text, and as HTML in a notebook.

The views know what a result looks like, and are above the rooms that make it: they register it with :func:`draw`.
"""

from __future__ import annotations

import reprlib
from functools import singledispatch
from typing import Any, Literal

import msgspec

LONGEST = 240  # characters of a result in a line
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxtuple, _SHORT.maxlist, _SHORT.maxdict = 2, 3, 3, 4
_SHORT.maxstring = _SHORT.maxother = 60


@singledispatch
def draw(result: object, format: Literal["table", "html"]) -> str:  # noqa: ARG001 - as those that are registered
    """Return a result as text or as HTML."""
    return repr(result)


def fields_by_key(struct: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a struct by their keys in JSON."""
    names = zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
    return {key: getattr(struct, name) for name, key in names}


class Displayed:
    """A result that ``print`` and notebooks show by :func:`draw`."""

    __slots__ = ()

    def __str__(self) -> str:
        return draw(self, "table")

    def _repr_html_(self) -> str:
        return draw(self, "html")


class Struct(Displayed, msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Data whose ``repr`` is a line: the fields that differ from their defaults, the long ones shortened."""

    def __repr__(self) -> str:
        text = ""
        for name, value in self.__rich_repr__():
            text += f", {name}={short(value)}"
            if len(text) > LONGEST:
                text = f"{text[:LONGEST]}…"
                break
        return f"{type(self).__name__}({text[2:]})"


def short(value: object) -> str:
    """Return the ``repr`` of a value, shortened."""
    return _SHORT.repr(value)
