"""The layers of a TensorRT engine in the two files that scripts around TensorRT read, beside our own profile.

``trt_layer_latency.json`` is what a profiler object of TensorRT gathers: by layer name, the milliseconds of every run.
``trt_engine_info.json`` is what the engine's inspector tells (``get_engine_information`` in JSON). Its ``Layers`` have
name, type, tensors, weights, bias, kernel, stride, padding and tactic where the engine's profiling verbosity is
detailed, and are names alone where it is not; its ``Bindings`` are the names of the engine's inputs and outputs.

Both are made from those layers of a profile that have the inspector's words under ``INSPECTOR``: what a model runs
beside its engines is in neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from inferlens.record.layer_profile import Layer, Profile

LATENCY = "trt_layer_latency.json"
INFORMATION = "trt_engine_info.json"
INSPECTOR = "inspector"
BINDINGS = "engine_bindings"


def engine_files(profile: Profile) -> dict[str, bytes]:
    """The two files by name; empty for a profile that is of no engine."""
    layers = [layer for layer in (profile.layers.layers if profile.layers else ()) if INSPECTOR in layer.details]
    if not layers:
        return {}
    return {LATENCY: _json(layer_latency(layers)), INFORMATION: _json(engine_information(layers, profile.facts))}


def layer_latency(layers: Sequence[Layer]) -> dict[str, list[float]]:
    """Milliseconds of each layer in each run, by name, in the order of execution.

    A layer that TensorRT does not time has an empty list. Layers of the same name are told apart by ``#2``, ``#3`` and
    so on, so that each list has a number for every run.
    """
    found: dict[str, list[float]] = {}
    for layer in layers:
        name, number = layer.name, 1
        while name in found:
            number += 1
            name = f"{layer.name} #{number}"
        found[name] = [round(time * 1e3, 9) for time in layer.times]
    return found


def engine_information(layers: Sequence[Layer], facts: dict[str, Any]) -> dict[str, Any]:
    """What the inspector told of the layers, and the names of the engine's inputs and outputs."""
    bindings = facts.get(BINDINGS)
    return {
        "Layers": [layer.details[INSPECTOR] for layer in layers],
        "Bindings": bindings if isinstance(bindings, list) else [],
    }


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=4) + b"\n"
