"""``transformers:NAME``: a model type of Hugging Face Transformers, built from its default configuration, offline.

NAME is a model type (``bert``), a folder with a ``config.json``, or a checkpoint whose configuration is in the local
cache. A checkpoint's size cannot be guessed from its name, so one that is not here is refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferlens.errors import InferlensError, library, suggestion
from inferlens.models.adapter import ByKeyword
from inferlens.models.model import ModelInfo
from inferlens.models.sources.base import LoadRequest, Opened, Source
from inferlens.spec.case import TensorSpec

TOKENS = 128
# Checkpoints whose configuration is their type's default one.
DEFAULTS = {
    "bert-base-uncased": "bert", "distilbert-base-uncased": "distilbert", "google/vit-base-patch16-224": "vit",
    "openai-community/gpt2": "gpt2", "openai/clip-vit-base-patch32": "clip",
}  # fmt: skip


class Transformers(Source):
    """Models of Transformers."""

    prefix = "transformers"

    def names(self) -> Sequence[str]:
        """See :class:`Source`."""
        return [*_config_names(), *DEFAULTS]

    def find(self, name: str) -> ModelInfo:
        """See :class:`Source`."""
        if name in self.names() or Path(name, "config.json").exists():
            return ModelInfo(spec=f"{self.prefix}:{name}", name=Path(name).name, format="module")
        try:
            _config(name)
        except OSError:
            raise InferlensError(
                f"transformers has no model type '{name}', and no checkpoint of that name is on this machine.",
                expected="a model type such as bert, a folder with a config.json, or a checkpoint in the local cache",
                hint=suggestion(name, self.names()) or "transformers:bert",
            ) from None
        return ModelInfo(spec=f"{self.prefix}:{name}", name=Path(name).name, format="module")

    def open(self, name: str, request: LoadRequest) -> Opened:
        """See :class:`Source`."""
        transformers = _library()
        if request.weights and not Path(request.weights).suffix:
            raise InferlensError(
                f"transformers would fetch the weights '{request.weights}' from the network.",
                hint="--weights with a file",
            )
        config = _config(name)
        try:
            module = transformers.AutoModel.from_config(config)
        except ValueError as error:
            raise InferlensError(f"transformers cannot build '{name}': {str(error).splitlines()[0][:200]}.") from error
        inputs = _inputs(module, config)
        return Opened(
            format="module",
            module=ByKeyword.of(module, [spec.name for spec in inputs]),
            inputs=inputs,
            fresh=True,
            source=f"transformers {transformers.__version__}",
        )


def _library() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    library("torch", extra="torch")  # transformers imports without it, and then builds nothing
    return library("transformers", extra="models")


def _config_names() -> list[str]:
    _library()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return list(CONFIG_MAPPING_NAMES)


def _config(name: str) -> Any:
    """The configuration; caches off, outputs as tuples, so that a model can be traced and exported."""
    transformers = _library()
    name = DEFAULTS.get(name, name)
    if name in _config_names():
        config = transformers.AutoConfig.for_model(name)
    else:
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=True)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return config


def _inputs(module: Any, config: Any) -> tuple[TensorSpec, ...]:
    """Inputs by what the model's main input is called.

    Raises:
        InferlensError: for a main input of a kind not known here.
    """
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
        raise InferlensError(
            f"What to feed the input '{main}' of this model is not known.",
            hint="a factory that returns module and inputs",
        )
    if getattr(config, "is_encoder_decoder", False):
        specs.append(TensorSpec("decoder_input_ids", (1, 32), "int64", 0, config.vocab_size))
    return tuple(specs)
