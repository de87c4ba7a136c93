"""``fake:NAME``: no model at all, for backends that compute nothing."""

from __future__ import annotations

from inferlens.models.model import ModelInfo
from inferlens.models.sources.base import LoadRequest, Opened, Source
from inferlens.spec.case import TensorSpec


class Fake(Source):
    """Any name, one input."""

    prefix = "fake"
    format = "fake"

    def find(self, name: str) -> ModelInfo:
        """See :class:`Source`."""
        return ModelInfo(spec=f"fake:{name}", name=name or "fake", format="fake")

    def open(self, name: str, request: LoadRequest) -> Opened:  # noqa: ARG002 - nothing is opened
        """See :class:`Source`."""
        return Opened(format="fake", inputs=(TensorSpec("x", (1, 3, 8, 8)),), weights="none")
