"""What the runners of compiled modules share: a call that may be replayed from a CUDA graph.

The graph is captured around the whole call, by ``backends/cuda_graph.py``, and not by the library's own
``enable_cudagraphs``: that one copies the inputs in every call and clones the outputs, which would be timed here and in
no other backend; and it captures single engines, where PyTorch runs something between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from inferlens.backends.base import Preparation
from inferlens.backends.cuda_graph import CudaGraph
from inferlens.backends.layer_runs import check_level
from inferlens.backends.torch_runner import Feed, TorchOptions, TorchRunner, not_entered
from inferlens.backends.torch_tensorrt.library import Library
from inferlens.backends.torch_tensorrt.options import Options
from inferlens.case import Case
from inferlens.errors import Unsupported
from inferlens.layer_profile import Layers
from inferlens.models.model import Model
from inferlens.partition import Segment


class ReplayingRunner(TorchRunner):
    """Calls a module that has engines in it, or replays the call."""

    def __init__(self, model: Model, case: Case, preparation: Preparation, options: Options, library: Library) -> None:
        super().__init__(model, case, preparation, TorchOptions(tf32=options.tf32), autocast=options.autocast)
        self.options = options
        self.library = library
        self._graph: CudaGraph | None = None

    def captured(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, which is captured first if that was asked for.

        Raises:
            Unsupported: if it cannot be captured.
        """
        if self.options.cuda_graph:
            self._graph = CudaGraph.capture(call, self.seeded_feed())
        return call

    def infer(self, feed: Feed) -> Any:
        """One call, or one replay; a replay copies ``feed`` in first unless it is the one that is there already."""
        return self._call(*feed) if self._graph is None else self._graph(feed)

    def bind(self, feed: Feed) -> None:
        """Copies ``feed`` into the captured inputs, if the call is replayed."""
        if self._graph is not None:
            self._graph.bind(feed)

    def read_by(self, feed: Feed) -> list[Any]:
        """The captured inputs, if the call is replayed."""
        return list(feed if self._graph is None else self._graph.inputs)

    def profiled(self, compiled: Any, feed: Feed, runs: int, segments: Sequence[Segment] = ()) -> Layers:
        """The layers of ``compiled``, which a call runs; ``segments`` say what PyTorch runs of it.

        Raises:
            Unsupported: if calls are replayed from a CUDA graph, or no engine reports times.
        """
        from inferlens.backends.torch_tensorrt.layers import layers_of
        from inferlens.backends.torch_tensorrt.telling import origin_among

        check_level(self.preparation)
        if self._graph is not None:
            raise Unsupported("A CUDA graph replays kernels and tells no layers.", cure="without cuda_graph")
        paths = frozenset(path for path, _ in self.model.module.named_modules()) if self.model.module else frozenset()
        folder = self.preparation.folder / "engine-reports"
        tensorrt = import_module(self.library.package)
        layers, bindings = layers_of(self, compiled, feed, runs, folder, tensorrt, origin_among(paths), segments)
        self.preparation.facts["engine_bindings"] = bindings
        return layers

    def device_memory(self) -> None:
        """Not told: engines take memory past PyTorch's allocator."""

    def __exit__(self, *error: Any) -> None:
        self._call = not_entered
        self._graph = None
        super().__exit__(*error)
