"""JSON: the document's data; numbers that are not finite become null."""

from __future__ import annotations

import msgspec

from inferlens.views.table import Document


def render(document: Document, width: int = 0, color: bool = False) -> str:  # noqa: ARG001 - as every format
    """The data, indented by one."""
    return msgspec.json.format(msgspec.json.encode(document.data()), indent=1).decode() + "\n"
