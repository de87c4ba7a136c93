"""``torchvision:NAME``: every model that ``torchvision.models.list_models()`` names."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from inferlens.errors import InferlensError, MissingLibrary
from inferlens.models.sources.base import Opened, Source, Wish
from inferlens.spec.case import TensorSpec

CLIPS = {"r3d_18": 112, "mc3_18": 112, "r2plus1d_18": 112}  # frames of these video models are this wide, of others 224


class Torchvision(Source):
    """Models of torchvision."""

    prefix = "torchvision"

    def names(self) -> Sequence[str]:
        """See :class:`Source`."""
        names: list[str] = _library().models.list_models()
        return names

    def open(self, name: str, wish: Wish) -> Opened:
        """See :class:`Source`."""
        torchvision = _library()
        builder = torchvision.models.get_model_builder(name)
        arguments: dict[str, Any] = {"weights": _cached(torchvision, name, wish.weights)}
        parameters = inspect.signature(builder).parameters
        if "weights_backbone" in parameters:
            arguments["weights_backbone"] = None
        if name == "inception_v3" or name == "googlenet":  # their own init takes a minute, and warns
            arguments |= {"init_weights": False, "transform_input": False}
        return Opened(
            format="module",
            module=builder(**arguments),
            inputs=_inputs(torchvision, name),
            fresh=arguments["weights"] is None,
            named_weights=arguments["weights"] is not None,
            weights=str(arguments["weights"] or ""),
            source=f"torchvision {torchvision.__version__}",
        )


def _library() -> Any:
    try:
        import torchvision
    except ImportError as error:
        raise MissingLibrary("torchvision", extra="models") from error
    return torchvision


def _cached(torchvision: Any, name: str, wanted: str | None) -> Any:
    """The weights of that name, if torch's hub folder has their file: nothing is fetched."""
    from pathlib import Path

    import torch

    if wanted is None or Path(wanted).suffix:  # a file is loaded afterwards, whatever the source
        return None
    known = torchvision.models.get_model_weights(name)
    try:
        weights = known[wanted]
    except KeyError:
        names = ", ".join(weight.name for weight in known)
        raise InferlensError(f"{name} has no weights '{wanted}'.", expected=f"DEFAULT, {names}, or a file") from None
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
    if not file.exists():
        raise InferlensError(
            f"The weights {weights} are not on this machine, and nothing is fetched from the network.",
            hint=f"fetch {weights.url} to {file}, or give a file with --weights",
        )
    return weights


def _inputs(torchvision: Any, name: str) -> tuple[TensorSpec, ...]:
    module = torchvision.models.get_model_builder(name).__module__
    if ".video" in module:
        width = CLIPS.get(name, 224)
        return (TensorSpec("x", (1, 3, 16, width, width)),)
    if ".optical_flow" in module:
        return (TensorSpec("image1", (1, 3, 224, 224)), TensorSpec("image2", (1, 3, 224, 224)))
    if ".detection" in module or ".segmentation" in module:
        width = 320 if ".detection" in module else 520
        return (TensorSpec("images" if ".detection" in module else "x", (1, 3, width, width)),)
    transform = torchvision.models.get_model_weights(name).DEFAULT.transforms
    width = 224 if name.startswith("vit_") else getattr(transform, "keywords", {}).get("crop_size", 224)
    return (TensorSpec("x", (1, 3, width, width)),)
