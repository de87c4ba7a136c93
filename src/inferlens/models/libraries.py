"""Models of libraries by name, ours among them. Nothing is fetched: named weights must be on this machine."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import inferlens
from inferlens.errors import InferlensError, LateModule, check_choice, library, reason, suggestion
from inferlens.models.inputs import by_position
from inferlens.models.model import Array, LoadRequest, Model, ModelInfo, Source
from inferlens.spec.case import TensorSpec

torch: Any = LateModule("torch")

IMAGE = TensorSpec("x", (1, 3, 224, 224))
# Inputs of torchvision's models, by a part of the name of their module.
KINDS = {
    ".video.resnet": TensorSpec("x", (1, 3, 16, 112, 112)), ".video": TensorSpec("x", (1, 3, 16, 224, 224)),
    ".detection": TensorSpec("images", (1, 3, 320, 320)), ".segmentation": TensorSpec("x", (1, 3, 520, 520)),
}  # fmt: skip
TOKENS = 128
# Checkpoints of Transformers whose configuration is their type's default one.
DEFAULTS = {
    "bert-base-uncased": "bert", "distilbert-base-uncased": "distilbert", "google/vit-base-patch16-224": "vit",
    "openai-community/gpt2": "gpt2", "openai/clip-vit-base-patch32": "clip",
}  # fmt: skip


def _torchvision() -> Any:
    """Return torchvision, imported without ``torch._dynamo``, whose import takes two seconds in every process.

    torchvision uses one function of ``torch._dynamo``, for ``roi_align``. The function is imported when it is called.
    """
    name = "torch._dynamo.utils"
    if "torchvision" in sys.modules or name in sys.modules or not importlib.util.find_spec("torch"):
        return library("torchvision", extra="models")
    library("torch", extra="models")
    deferred: Any = ModuleType(name)
    deferred.is_compile_supported = lambda device: importlib.import_module(name).is_compile_supported(device)
    sys.modules[name] = deferred
    try:
        return library("torchvision", extra="models")
    finally:
        del sys.modules[name]


class Torchvision(Source):
    """Models of torchvision."""

    prefix = "torchvision"
    vouched = True

    def names(self) -> Sequence[str]:
        return list(_torchvision().models.list_models())

    def open(self, name: str, request: LoadRequest) -> Model:
        torchvision = _torchvision()
        builder = torchvision.models.get_model_builder(name)
        weights = _cached_weights(torchvision, name, request.named_weights) if request.named_weights else None
        arguments: dict[str, Any] = {"weights": weights}
        if "weights_backbone" in inspect.signature(builder).parameters:
            arguments["weights_backbone"] = None
        if name in ("inception_v3", "googlenet"):  # their own initialization takes a minute, and warns
            arguments |= {"init_weights": False, "transform_input": False}
        return Model(
            module=builder(**arguments),
            inputs=_image_inputs(torchvision, name),
            fresh=weights is None,
            named_weights=weights is not None,
            weights=str(weights or ""),
            source=f"torchvision {torchvision.__version__}",
        )

    def preparation(self, name: str, spec: TensorSpec) -> Callable[[Any], Array]:  # noqa: ARG002 - images have one size
        transform = _torchvision().models.get_model_weights(name).DEFAULT.transforms()
        return lambda image: np.asarray(transform(image))


class Timm(Source):
    """Models of timm."""

    prefix = "timm"
    vouched = True

    def names(self) -> Sequence[str]:
        return list(library("timm", extra="models").list_models())

    def open(self, name: str, request: LoadRequest) -> Model:
        _refuse_named_weights(request, "timm")
        timm = library("timm", extra="models")
        module = timm.create_model(name, pretrained=False)
        inputs = (TensorSpec("x", (1, *module.pretrained_cfg.get("input_size", IMAGE.shape[1:]))),)
        return Model(module=module, inputs=inputs, fresh=True, source=f"timm {timm.__version__}")

    def preparation(self, name: str, spec: TensorSpec) -> Callable[[Any], Array]:
        timm = library("timm", extra="models")
        trained = timm.get_pretrained_cfg(name).to_dict()  # the size of its images, and how they are cut and normalized
        config = timm.data.resolve_data_config({"input_size": spec.shape[1:]}, pretrained_cfg=trained)
        transform = timm.data.create_transform(**config)
        return lambda image: np.asarray(transform(image))


class Transformers(Source):
    """Models of Hugging Face Transformers, built offline from a configuration.

    A name is a model type (``bert``), a folder with a ``config.json``, or a checkpoint whose configuration is in the
    local cache.
    """

    prefix = "transformers"

    def names(self) -> Sequence[str]:
        _transformers()
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

        return [*CONFIG_MAPPING_NAMES, *DEFAULTS]

    def find(self, name: str) -> ModelInfo:
        try:
            if name not in self.names() and not Path(name, "config.json").exists():
                self._config(name)
        except OSError:
            raise InferlensError(
                f"transformers has no model type '{name}', and no checkpoint of that name is on this machine.",
                expected="a model type such as bert, a folder with a config.json, or a checkpoint in the local cache",
                hint=suggestion(name, self.names()) or "transformers:bert",
            ) from None
        return ModelInfo(spec=f"{self.prefix}:{name}", name=Path(name).name, format="module")

    def open(self, name: str, request: LoadRequest) -> Model:
        _refuse_named_weights(request, "transformers")
        transformers, config = _transformers(), self._config(name)
        try:
            module = transformers.AutoModel.from_config(config)
        except ValueError as error:
            raise InferlensError(f"transformers cannot build '{name}': {reason(error)}.") from error
        inputs = _model_inputs(module, config)
        return Model(
            module=by_position(module, [spec.name for spec in inputs]),
            inputs=inputs,
            fresh=True,
            source=f"transformers {transformers.__version__}",
        )

    def _config(self, name: str) -> Any:
        """Return the configuration, without caches, so that a model can be traced and exported."""
        configs = _transformers().AutoConfig
        model_type = DEFAULTS.get(name, name)
        if model_type in self.names():
            config = configs.for_model(model_type)
        else:
            config = configs.from_pretrained(name, local_files_only=True)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        return config


class Zoo(Source):
    """The models in ``inferlens.models.zoo``."""

    prefix = "inferlens"
    vouched = True

    def names(self) -> Sequence[str]:
        return ["resnet34"]

    def open(self, name: str, request: LoadRequest) -> Model:  # noqa: ARG002 - a file of weights is loaded afterwards
        library("torch", extra="torch")
        from inferlens.models.zoo import ResNet34

        source = f"inferlens {inferlens.__version__}"
        return Model(module=ResNet34(), inputs=(IMAGE,), fresh=True, source=source)


class FakeSource(Source):
    """No model at all, for backends that compute nothing: any name, one input."""

    prefix = "fake"
    format = "fake"
    vouched = True

    def find(self, name: str) -> ModelInfo:
        return ModelInfo(spec=f"fake:{name}", name=name or "fake", format="fake")

    def open(self, name: str, request: LoadRequest) -> Model:  # noqa: ARG002 - nothing is opened
        return Model(format="fake", inputs=(TensorSpec("x", (1, 3, 8, 8)),), weights="none")


def _refuse_named_weights(request: LoadRequest, library: str) -> None:
    if request.named_weights:
        message = f"{library} would fetch the weights '{request.named_weights}' from the network."
        raise InferlensError(message, hint="--weights with a file")


def _cached_weights(torchvision: Any, model: str, name: str) -> Any:
    """Return the weights called ``name`` of a model, if the folder of torch's hub has their file."""
    choices = torchvision.models.get_model_weights(model)
    check_choice(f"file of weights, or name of those of {model},", name, choices.__members__)
    weights = choices[name]
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
    if not file.exists():
        message = f"The weights {weights} are not on this machine, and nothing is fetched from the network."
        raise InferlensError(message, hint=f"fetch {weights.url} to {file}, or give a file with --weights")
    return weights


def _image_inputs(torchvision: Any, name: str) -> tuple[TensorSpec, ...]:
    module = torchvision.models.get_model_builder(name).__module__
    if ".optical_flow" in module:
        return (TensorSpec("image1", IMAGE.shape), TensorSpec("image2", IMAGE.shape))
    for part, spec in KINDS.items():
        if part in module:
            return (spec,)
    transform = torchvision.models.get_model_weights(name).DEFAULT.transforms
    width = 224 if name.startswith("vit_") else getattr(transform, "keywords", {}).get("crop_size", 224)
    return (TensorSpec("x", (1, 3, width, width)),)


def _transformers() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    library("torch", extra="torch")  # transformers imports without it, and then builds nothing
    return library("transformers", extra="models")


def _model_inputs(module: Any, config: Any) -> tuple[TensorSpec, ...]:
    """Return the inputs of a model of Transformers by the name of its main input."""
    specs: list[TensorSpec] = []
    main = module.main_input_name
    text, vision = getattr(config, "text_config", config), getattr(config, "vision_config", config)
    if main == "input_ids":
        length = min(TOKENS, getattr(text, "max_position_embeddings", None) or TOKENS)
        specs.append(TensorSpec("input_ids", (1, length), "int64", 0, text.vocab_size))
        specs.append(TensorSpec("attention_mask", (1, length), "int64", 1, 2))
    if main == "pixel_values" or hasattr(config, "vision_config"):
        size = getattr(vision, "image_size", 224)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        specs.append(TensorSpec("pixel_values", (1, getattr(vision, "num_channels", 3), height, width)))
    if main == "input_values":
        specs.append(TensorSpec("input_values", (1, 16_000)))
    if main == "input_features" and hasattr(config, "num_mel_bins"):
        frames = 2 * getattr(config, "max_source_positions", 1500)
        specs.append(TensorSpec("input_features", (1, config.num_mel_bins, frames)))
    if not specs:
        message = f"What to feed the input '{main}' of this model is not known."
        raise InferlensError(message, hint="a factory that returns module and inputs")
    if getattr(config, "is_encoder_decoder", False):
        specs.append(TensorSpec("decoder_input_ids", (1, 32), "int64", 0, config.vocab_size))
    return tuple(specs)
