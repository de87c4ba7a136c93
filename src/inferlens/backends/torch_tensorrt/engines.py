"""The engines inside of a compiled module, each as something that reports the times of its layers after every run.

Both runtimes report: that in Python through TensorRT's ``IProfiler``, that in C++ by files, which it writes anew in
each call and in which times are sums since profiling began; a run's times are the differences of these sums.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partialmethod
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from inferlens.backends.tensorrt.inspector import layers_and_bindings
from inferlens.backends.tensorrt.layers import CLOCK, Report, Reporting, numbered
from inferlens.backends.torch_tensorrt.library import replaced

NATIVE_CLOCK = "Torch-TensorRT's runtime in C++, which has TensorRT's IProfiler put CUDA events around every layer"
ENGINE_TYPE = "tensorrt.Engine"
OWNERS = ("TorchTensorRTModule", "PythonTorchTensorRTModule")
WRITTEN = "*_engine_execution_profile.trace"
NAMES = re.compile(r'"name":\s*"(.*?)",\s*"ph"', re.S)  # a name is written as it is, quotes too: that is no JSON then
DURATIONS = re.compile(r'"dur":\s*([0-9.eE+-]+)')


class Inside(AbstractContextManager["Inside"]):
    """One engine; a context in which it is profiled. ``describe`` gives what its inspector wrote, as JSON."""

    clock = CLOCK
    prefix = ""  # of the names of its layers, where there are several engines

    def __init__(self, name: str, describe: Callable[[], Any]) -> None:
        self.name = name
        self._describe = describe

    @abstractmethod
    def take(self) -> Report:
        """The report of the run that has just ended."""

    def information(self) -> tuple[list[Any], list[str]]:
        """What it has of the layers, and the names of its inputs and outputs; nothing where that is no JSON."""
        try:
            return layers_and_bindings(str(self._describe()))
        except (msgspec.DecodeError, RuntimeError):
            return [], []


class PythonEngine(Inside):
    """An engine that the runtime in Python calls."""

    def __init__(self, name: str, owner: Any, context: Any, module: Any) -> None:
        super().__init__(name, owner.get_layer_info)
        self._reporting = Reporting(context, module)

    def __enter__(self) -> PythonEngine:
        self._reporting.__enter__()
        self._reporting.emit()
        return self

    def __exit__(self, *_: object) -> None:
        self._reporting.__exit__()

    def take(self) -> Report:
        """See :class:`Inside`."""
        return self._reporting.take()


class NativeEngine(Inside):
    """An engine that the runtime in C++ calls; it writes its reports into ``folder``, which is its own."""

    clock = NATIVE_CLOCK

    def __init__(self, name: str, engine: Any, folder: Path) -> None:
        super().__init__(name, engine.get_engine_layer_info)
        self._engine = engine
        self._folder = folder
        self._sums: dict[tuple[str, int], float] = {}

    def __enter__(self) -> NativeEngine:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._engine.profile_path_prefix = str(self._folder)
        self._engine.enable_profiling()
        self._engine.set_profile_format("perfetto")
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.disable_profiling()
        for path in self._folder.iterdir():
            path.unlink()
        self._folder.rmdir()

    def take(self) -> Report:
        """See :class:`Inside`."""
        written = [path.read_text(errors="replace") for path in sorted(self._folder.glob(WRITTEN))]
        sums = numbered([each for text in written for each in read_sums(text)])
        report = [(key[0], (total - self._sums.get(key, 0.0)) / 1e3) for key, total in sums.items()]
        self._sums = sums
        return report


def read_sums(written: str) -> list[tuple[str, float]]:
    """Names and microseconds in a file of the runtime in C++, in the order of execution."""
    return list(zip(NAMES.findall(written), map(float, DURATIONS.findall(written)), strict=False))


@contextmanager
def collected(level: str) -> Iterator[list[Any]]:
    """The modules with an engine that are made meanwhile, in order, if it is to profile at some ``level``.

    What ``torch.compile`` makes can be called and not be looked into, so its engines are noted as they are made.
    """
    runtime = import_module("torch_tensorrt.dynamo.runtime") if level else None
    named: list[Any] = [getattr(runtime, name, None) for name in OWNERS]
    kinds = [kind for kind in named if hasattr(kind, "setup_engine")]
    made: list[Any] = []

    def noted(module: Any, setup: Any, *arguments: Any) -> Any:
        if not any(module is each for each in made):
            made.append(module)
        return setup(module, *arguments)

    with ExitStack() as watched:
        for kind in kinds:
            watched.enter_context(replaced(kind, setup_engine=partialmethod(noted, kind.setup_engine)))
        yield made


def engines_in(compiled: Any, folder: Path, tensorrt: Any) -> list[Inside]:
    """The engines of a compiled module, in its order.

    Args:
        compiled: a module, a script module, or a list of modules.
        folder: where those of the runtime in C++ may write.
        tensorrt: the module of TensorRT that they were built with.
    """
    found: list[Inside] = []
    for path, part in _modules(compiled):
        native = list(_native(part))
        for number, (name, engine) in enumerate(native):
            label = path or name
            found.append(NativeEngine(label, engine, folder / f"engine-{len(found)}-{number}"))
        for holder in (part, getattr(part, "engine", None)):
            context = getattr(holder, "context", None)
            if not native and hasattr(context, "execute_async_v3"):
                found.append(PythonEngine(path, part, context, tensorrt))
                break
    for each in found:
        each.prefix = f"{each.name}/" if len(found) > 1 else ""
    return found


def _modules(compiled: Any) -> list[tuple[str, Any]]:
    if isinstance(compiled, list):
        return [
            (str(getattr(module, "name", "") or f"engine {place}"), module) for place, module in enumerate(compiled)
        ]
    return list(compiled.named_modules()) if hasattr(compiled, "named_modules") else []


def _native(part: Any) -> Iterator[tuple[str, Any]]:
    """Engines that a module holds itself: as attributes, or, of a script module, as those that its graph reads."""
    import torch

    if not isinstance(part, torch.jit.ScriptModule):
        for name, value in vars(part).items():
            if isinstance(value, torch.ScriptObject) and ENGINE_TYPE in str(value._type()):
                yield name, value
        return
    try:
        nodes = list(part.graph.nodes())
    except RuntimeError:  # a script module without a forward of its own
        return
    for node in nodes:
        if node.kind() == "prim::GetAttr" and ENGINE_TYPE in str(node.output().type()):
            yield node.s("name"), part._c.getattr(node.s("name"))
