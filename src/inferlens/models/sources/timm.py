"""``timm:NAME``: every model that ``timm.list_models()`` names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferlens.errors import InferlensError, MissingLibrary
from inferlens.models.sources.base import Opened, Source, Wish
from inferlens.spec.case import TensorSpec


class Timm(Source):
    """Models of timm."""

    prefix = "timm"

    def names(self) -> Sequence[str]:
        """See :class:`Source`."""
        names: list[str] = _library().list_models()
        return names

    def open(self, name: str, wish: Wish) -> Opened:
        """See :class:`Source`."""
        if wish.weights and not Path(wish.weights).suffix:
            raise InferlensError(
                f"timm would fetch the weights '{wish.weights}' from the network.", hint="--weights with a file"
            )
        timm = _library()
        module = timm.create_model(name, pretrained=False)
        shape = tuple(module.pretrained_cfg.get("input_size", (3, 224, 224)))
        return Opened(
            format="module",
            module=module,
            inputs=(TensorSpec("x", (1, *shape)),),
            fresh=True,
            source=f"timm {timm.__version__}",
        )


def _library() -> Any:
    try:
        import timm
    except ImportError as error:
        raise MissingLibrary("timm", extra="models") from error
    return timm
