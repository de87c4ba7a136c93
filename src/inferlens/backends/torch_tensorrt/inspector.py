"""Engines that tell of their layers, and from which operators of the graph each of them came.

Torch-TensorRT builds engines that tell names alone unless its debugger is on, which also logs everything; and it does
not say of a fused layer what was fused. While :func:`telling` lasts, engines are built to tell details, and every layer
of the network carries its own name as metadata, which TensorRT hands on to the layer that it becomes a part of. Neither
changes what is computed. The names hold the path of the module: ``[CONVOLUTION]-[aten_ops.convolution.default]-
[layer1.0.conv1/convolution_1]``; those of the TorchScript front end end in ``scope: __module.layer1/... # file``.

Some converters leave layers without a name, such as those of an attention, and TensorRT then makes one up, ``(Unnamed
Layer* 36) [AttentionOutput]``. Such a layer carries what the others are named by: the operator that was converted.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from inferlens.backends.tensorrt.inspector import Lookup as Origin
from inferlens.backends.torch_tensorrt.library import Library
from inferlens.backends.torch_tensorrt.operators import clean_path

INTERPRETER = "torch_tensorrt.dynamo.conversion._TRTInterpreter"
CONFIGURES = "_populate_trt_builder_config"
CONVERTS = "run_node"  # once for each operator of the graph
UNNAMED = "(Unnamed Layer* "  # begins the names that TensorRT makes up
DYNAMO_NAME = re.compile(r"^\[[^\]]*\]-\[([^\]]*)\]-\[(.*)\]", re.S)
SCRIPT_SCOPE = re.compile(r"scope: (\S+)")
SCRIPT_OPERATOR = re.compile(r"\b(aten::\w+)\(")
SCRIPT_ROOT = "__module."


@contextmanager
def telling(library: Library, level: str) -> Iterator[None]:
    """Has engines that are built meanwhile tell details, if they are built to be profiled at some ``level``."""
    kind = importlib.import_module(INTERPRETER).TRTInterpreter if level else None
    if not (hasattr(kind, CONFIGURES) and hasattr(kind, CONVERTS)):
        yield
        return
    own = {name: getattr(kind, name) for name in (CONFIGURES, CONVERTS)}
    tensorrt = importlib.import_module(library.package)

    def converted(interpreter: Any, node: Any) -> Any:
        network = interpreter.ctx.net
        before = network.num_layers
        result = own[CONVERTS](interpreter, node)
        for layer in map(network.get_layer, range(before, network.num_layers)):
            if layer.name.startswith(UNNAMED):
                layer.metadata = f"[{layer.type.name}]-[{node.target}]-[{interpreter._cur_node_name}]"
        return result

    def detailed(interpreter: Any, *arguments: Any, **named: Any) -> Any:
        config = own[CONFIGURES](interpreter, *arguments, **named)
        config.profiling_verbosity = tensorrt.ProfilingVerbosity.DETAILED
        network = interpreter.ctx.net
        for layer in map(network.get_layer, range(network.num_layers)):
            layer.metadata = layer.metadata or layer.name
        return config

    setattr(kind, CONFIGURES, detailed)
    setattr(kind, CONVERTS, converted)
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(kind, name, function)


def origin_among(paths: frozenset[str]) -> Origin:
    """Modules and operators from the names of the network's layers; ``paths`` are the model's own."""

    def origin(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        found = [each for name in names if (each := module_and_operator(name, paths)) is not None]
        modules = dict.fromkeys(module for module, _ in found)
        return tuple(modules), tuple(operator for _, operator in found if operator)

    return origin


def module_and_operator(name: str, paths: frozenset[str]) -> tuple[str, str] | None:
    """The path of the module that a layer of the network came from, and its operator; ``None`` if it does not tell."""
    script = SCRIPT_SCOPE.search(name)
    if script:
        operator = SCRIPT_OPERATOR.search(name)
        module = f"{script.group(1).rpartition('/')[2]}.".removeprefix(SCRIPT_ROOT).rstrip(".")
        known = _known(module, paths)
        return None if known is None else (known, operator.group(1) if operator else "")
    dynamo = DYNAMO_NAME.search(name)
    if dynamo is None:
        return None
    module, slash, _ = dynamo.group(2).rpartition("/")
    known = _known(clean_path(module), paths) if slash else None
    return None if known is None else (known, dynamo.group(1).replace("_ops.", ".", 1))


def _known(module: str, paths: frozenset[str]) -> str | None:
    """The path if the model has it, also behind the name of a module that was put around the model; ``None`` if not."""
    inner = module.partition(".")[2]
    return next((path for path in (module, inner) if path in paths), None)
