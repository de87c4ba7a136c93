"""What an engine's inspector writes, ``trt_engine_info.json``, as layers without times.

The file comes from anywhere: what has another form than expected is left out, and layers that are nothing but names
(an engine built with less than detailed profiling verbosity) stay, with a sentence on what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from inferlens.analysis.profile.graph import INSPECTED, Source, precision_in
from inferlens.errors import InferlensError
from inferlens.record.layer_profile import Layer, Tensor

FORM = 'JSON of an engine\'s inspector: {"Layers": [...], "Bindings": [...]}'
ONLY_NAMES = (
    "The engine tells only the names of its layers: it was built with less than detailed profiling verbosity "
    "(ProfilingVerbosity.DETAILED tells their tensors too)."
)
ORIGIN = "[ONNX Layer: "
_DIMENSIONS = 16
_WORDS = 200


def is_engine_information(data: bytes) -> bool:
    """Whether this may be an engine's information: a JSON object with layers in it."""
    return data.lstrip()[:1] == b"{" and b'"Layers"' in data and b'"schema"' not in data[:100]


def engine_source(data: bytes, title: str) -> Source:
    """The layers of an engine.

    Raises:
        InferlensError: if the data is no such JSON.
    """
    try:
        read = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InferlensError(f"{title} cannot be read: {error}.", expected=FORM) from error
    told = read.get("Layers") if isinstance(read, dict) else None
    if not isinstance(told, list) or not told:
        raise InferlensError(f"{title} has no layers.", expected=FORM)
    layers = tuple(_layer(each) for each in told if isinstance(each, (dict, str)))
    detailed = any(layer.inputs or layer.outputs for layer in layers)
    bindings = read.get("Bindings")
    names = {name for name in bindings if isinstance(name, str)} if isinstance(bindings, list) else set()
    written = {tensor.name for layer in layers for tensor in layer.outputs}
    return Source(
        title=title,
        about="engine · no times",
        layers=layers,
        inputs=_bound(names - written, (layer.inputs for layer in layers)),
        outputs=_bound(names & written, (layer.outputs for layer in layers)),
        notes=() if detailed else (ONLY_NAMES,),
    )


def origins_in(metadata: str) -> tuple[str, ...]:
    """Names of the ONNX nodes that a layer came from: ``[ONNX Layer: conv1]\\x1f[ONNX Layer: relu1]``."""
    parts = [part for part in metadata.split("\x1f") if part.startswith(ORIGIN)]
    return tuple(dict.fromkeys(part.removeprefix(ORIGIN).removesuffix("]") for part in parts))


def _layer(told: dict[str, Any] | str) -> Layer:
    if isinstance(told, str):
        return Layer(name=told)
    return Layer(
        name=str(told.get("Name", "")),
        kind=str(told.get("LayerType", "")),
        operators=origins_in(str(told.get("Metadata", ""))),
        inputs=_tensors(told.get("Inputs")),
        outputs=_tensors(told.get("Outputs")),
        details={str(key): _short(value) for key, value in told.items() if key not in INSPECTED},
    )


def _tensors(told: Any) -> tuple[Tensor, ...]:
    return tuple(_tensor(each) for each in told if isinstance(each, dict)) if isinstance(told, list) else ()


def _tensor(told: dict[str, Any]) -> Tensor:
    sizes = told.get("Dimensions")
    numbers = [size for size in sizes[:_DIMENSIONS] if isinstance(size, int)] if isinstance(sizes, list) else []
    written = str(told.get("Format/Datatype") or told.get("Datatype") or told.get("Format") or "")
    return Tensor(name=str(told.get("Name", "")), shape=tuple(numbers), dtype=precision_in(written), format=written)


def _bound(names: set[str], tensors: Iterable[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The tensors of these names, each once, in the order in which layers name them."""
    return tuple({one.name: one for group in tensors for one in group if one.name in names}.values())


def _short(value: Any) -> str:
    if isinstance(value, dict):  # weights: {"Type": "Half", "Count": 9408}
        value = ", ".join(f"{key} {each}" for key, each in list(value.items())[:8])
    return str(value)[:_WORDS]
