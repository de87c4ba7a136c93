"""``fake:NAME``: no model at all, for backends that compute nothing."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.case import TensorSpec
from inferlens.models.model import Found
from inferlens.models.sources.base import Opened, Source, Wish


class Fake(Source):
    """Any name, one input."""

    prefix = "fake"
    format = "fake"

    def names(self) -> Sequence[str]:
        """Any name will do, so none is listed."""
        return ()

    def find(self, name: str) -> Found:
        """See :class:`Source`."""
        return Found(spec=f"fake:{name}", name=name or "fake", format="fake")

    def open(self, name: str, wish: Wish) -> Opened:  # noqa: ARG002 - nothing is opened
        """See :class:`Source`."""
        return Opened(format="fake", inputs=(TensorSpec("x", (1, 3, 8, 8)),), weights="none")
