"""What an engine's inspector writes, ``trt_engine_info.json``, as layers without times.

Layers that are nothing but names (an engine built with less than detailed profiling verbosity) stay, with a sentence on
what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from inferlens.analysis.profile.graph import Source, precision_in
from inferlens.errors import InferlensError
from inferlens.record.layer_profile import Layer, Tensor

INSPECTED = ("Name", "LayerType", "Inputs", "Outputs", "Metadata")
ONLY_NAMES = "The engine keeps only the names of its layers: build it with ProfilingVerbosity.DETAILED."
_ORIGIN = "[ONNX Layer: "


def is_engine_information(data: bytes) -> bool:
    """Whether this may be an engine's information: a JSON object with layers in it."""
    return data.lstrip()[:1] == b"{" and b'"Layers"' in data and b'"schema"' not in data[:100]


def engine_source(data: bytes, title: str) -> Source:
    """The layers of an engine.

    Raises:
        InferlensError: if the data is no such JSON, or has no layers.
    """
    try:
        read = msgspec.json.decode(data, type=dict[str, Any])
        layers = tuple(Layer(name=each) if isinstance(each, str) else _layer(each) for each in read["Layers"])
        bindings = {str(name) for name in read.get("Bindings", ())}
        if not layers:
            raise ValueError("it has no layers")
    except (msgspec.MsgspecError, RecursionError, AttributeError, KeyError, TypeError, ValueError) as error:
        form = 'JSON of an engine\'s inspector: {"Layers": [...], "Bindings": [...]}'
        raise InferlensError(f"{title} cannot be read: {error}.", expected=form) from error
    written = {tensor.name for layer in layers for tensor in layer.outputs}
    return Source(
        title=title,
        about="engine · no times",
        layers=layers,
        inputs=_bound(bindings - written, (layer.inputs for layer in layers)),
        outputs=_bound(bindings & written, (layer.outputs for layer in layers)),
        notes=() if any(layer.inputs or layer.outputs for layer in layers) else (ONLY_NAMES,),
    )


def _layer(entry: Mapping[str, Any]) -> Layer:
    # [ONNX Layer: conv1]\x1f[ONNX Layer: relu1]
    parts = [part for part in entry.get("Metadata", "").split("\x1f") if part.startswith(_ORIGIN)]
    return Layer(
        name=str(entry.get("Name", "")),
        kind=str(entry.get("LayerType", "")),
        operators=tuple(dict.fromkeys(part.removeprefix(_ORIGIN).removesuffix("]") for part in parts)),
        inputs=tuple(map(_tensor, entry.get("Inputs", ()))),
        outputs=tuple(map(_tensor, entry.get("Outputs", ()))),
        details={key: _short(value) for key, value in entry.items() if key not in INSPECTED},
    )


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    written = str(entry.get("Format/Datatype") or entry.get("Datatype") or entry.get("Format") or "")
    shape = tuple(int(size) for size in entry.get("Dimensions", ()))
    return Tensor(name=str(entry.get("Name", "")), shape=shape, dtype=precision_in(written), format=written)


def _bound(names: set[str], tensors: Iterable[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The tensors of these names, each once, in the order in which layers name them."""
    return tuple({one.name: one for group in tensors for one in group if one.name in names}.values())


def _short(value: Any) -> str:
    if isinstance(value, dict):  # weights: {"Type": "Half", "Count": 9408}
        value = ", ".join(f"{key} {each}" for key, each in list(value.items())[:8])
    return str(value)[:200]
