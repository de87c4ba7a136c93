"""Module names with quotes or line breaks, which PyTorch allows and its graphs cannot write.

A graph of ``torch.fx`` becomes Python code, and a name that is no identifier becomes ``getattr(self, "NAME")``, with
nothing escaped: the code of such a graph is no Python, and the exporter to ONNX fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

UNWRITABLE = re.compile(r'["\\\n\r]')
WRITES = "_format_target"


@contextmanager
def any_names() -> Iterator[None]:
    """While it lasts, names are written as Python's literals where PyTorch's own way would break them."""
    from torch.fx import graph

    own = getattr(graph, WRITES, None)
    if own is None:  # not this PyTorch's way any more
        yield
        return

    def written(base: str, target: str) -> str:
        if not UNWRITABLE.search(target):
            return str(own(base, target))
        for name in target.split("."):
            base = f"{base}.{name}" if name.isidentifier() else f"getattr({base}, {name!r})"
        return base

    setattr(graph, WRITES, written)
    try:
        yield
    finally:
        setattr(graph, WRITES, own)
