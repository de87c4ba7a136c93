"""Models of libraries by name: ``torchvision:``, ``timm:`` and our own, ``inferlens:``. Nothing is fetched."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import inferlens
from inferlens.errors import InferlensError, library
from inferlens.models.sources.base import LoadRequest, Opened, Source
from inferlens.models.zoo import ZOO
from inferlens.spec.case import TensorSpec

CLIPS = {"r3d_18": 112, "mc3_18": 112, "r2plus1d_18": 112}  # frames of these video models are this wide, of others 224


class Torchvision(Source):
    """Models of torchvision."""

    prefix = "torchvision"

    def names(self) -> Sequence[str]:
        """See :class:`Source`."""
        names: list[str] = library("torchvision", extra="models").models.list_models()
        return names

    def open(self, name: str, request: LoadRequest) -> Opened:
        """See :class:`Source`."""
        torchvision = library("torchvision", extra="models")
        builder = torchvision.models.get_model_builder(name)
        arguments: dict[str, Any] = {"weights": _cached(torchvision, name, request.weights)}
        parameters = inspect.signature(builder).parameters
        if "weights_backbone" in parameters:
            arguments["weights_backbone"] = None
        if name == "inception_v3" or name == "googlenet":  # their own init takes a minute, and warns
            arguments |= {"init_weights": False, "transform_input": False}
        return Opened(
            format="module",
            module=builder(**arguments),
            inputs=_image_inputs(torchvision, name),
            fresh=arguments["weights"] is None,
            named_weights=arguments["weights"] is not None,
            weights=str(arguments["weights"] or ""),
            source=f"torchvision {torchvision.__version__}",
        )


class Timm(Source):
    """Models of timm."""

    prefix = "timm"

    def names(self) -> Sequence[str]:
        """See :class:`Source`."""
        names: list[str] = library("timm", extra="models").list_models()
        return names

    def open(self, name: str, request: LoadRequest) -> Opened:
        """See :class:`Source`."""
        if request.weights and not Path(request.weights).suffix:
            raise InferlensError(
                f"timm would fetch the weights '{request.weights}' from the network.", hint="--weights with a file"
            )
        timm = library("timm", extra="models")
        module = timm.create_model(name, pretrained=False)
        shape = tuple(module.pretrained_cfg.get("input_size", (3, 224, 224)))
        return Opened(
            format="module",
            module=module,
            inputs=(TensorSpec("x", (1, *shape)),),
            fresh=True,
            source=f"timm {timm.__version__}",
        )


class Zoo(Source):
    """The models in ``inferlens.models.zoo``."""

    prefix = "inferlens"

    def names(self) -> Sequence[str]:
        """See :class:`Source`."""
        return list(ZOO)

    def open(self, name: str, request: LoadRequest) -> Opened:  # noqa: ARG002 - a file of weights is loaded afterwards
        """See :class:`Source`."""
        module, _, factory = ZOO[name].partition(":")
        library("torch", extra="torch")
        built = getattr(import_module(module), factory)()
        inputs = (TensorSpec("x", (1, 3, 224, 224)),)
        source = f"inferlens {inferlens.__version__}"
        return Opened(format="module", module=built, inputs=inputs, fresh=True, source=source)


def _cached(torchvision: Any, name: str, wanted: str | None) -> Any:
    """The weights of that name, if torch's hub folder has their file: nothing is fetched."""
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


def _image_inputs(torchvision: Any, name: str) -> tuple[TensorSpec, ...]:
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
