"""``inferlens:NAME``: models of our own."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import inferlens
from inferlens.errors import MissingLibrary
from inferlens.models.sources.base import Opened, Source, Wish
from inferlens.models.zoo import ZOO
from inferlens.spec.case import TensorSpec


class Zoo(Source):
    """The models in ``inferlens.models.zoo``."""

    prefix = "inferlens"

    def names(self) -> Sequence[str]:
        """See :class:`Source`."""
        return list(ZOO)

    def open(self, name: str, wish: Wish) -> Opened:  # noqa: ARG002 - a file of weights is loaded afterwards
        """See :class:`Source`."""
        module, _, factory = ZOO[name].partition(":")
        try:
            built = getattr(import_module(module), factory)()
        except ImportError as error:
            raise MissingLibrary("torch", extra="torch") from error
        inputs = (TensorSpec("x", (1, 3, 224, 224)),)
        source = f"inferlens {inferlens.__version__}"
        return Opened(format="module", module=built, inputs=inputs, fresh=True, source=source)
