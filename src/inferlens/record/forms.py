"""JSON forms that name their schema: read whole, or refused with what they are not."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from inferlens.errors import InferlensError

Form = TypeVar("Form")


def decoded(data: bytes, form: type[Form], schema: str, noun: str) -> Form:
    """``data`` as ``form``; ``noun`` names it in errors.

    Raises:
        InferlensError: if the data has another schema, or is no such JSON.
    """
    try:
        found = msgspec.json.decode(data, type=_Tag).schema
        if found != schema:
            raise InferlensError(
                f"The {noun} has schema '{found}'.", expected=schema, hint="a version of inferlens that knows it"
            )
        return msgspec.json.decode(data, type=form)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InferlensError(f"This is no {noun}: {error}.", expected=f"JSON with schema {schema}") from error


class _Tag(Struct):
    schema: str = ""
