"""What the runners of compiled modules share: a call that may be replayed from a CUDA graph.

The graph is captured around the whole call, by ``backends/cuda_graph.py``, and not by the library's own
``enable_cudagraphs``: that one copies the inputs in every call and clones the outputs, which would be timed here and in
no other backend; and it captures single engines, where PyTorch runs something between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from inferlens.backends.abilities import KernelOrigins, Launched, LayerProfiler, Origins
from inferlens.backends.base import Preparation
from inferlens.backends.profiling.layer_runs import check_level
from inferlens.backends.pytorch.cuda_graph import CudaGraph
from inferlens.backends.pytorch.runner import Feed, TorchOptions, TorchRunner, not_entered
from inferlens.backends.torch_tensorrt.library import Library
from inferlens.backends.torch_tensorrt.options import Options
from inferlens.errors import Unsupported
from inferlens.models.model import Model
from inferlens.record.layer_profile import Layers
from inferlens.record.partition import Segment
from inferlens.spec.case import Case

if TYPE_CHECKING:
    from inferlens.backends.torch_tensorrt.layers import Interior


class ReplayingRunner(TorchRunner, LayerProfiler, KernelOrigins):
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

    def inside(self) -> tuple[Any, Sequence[Segment]]:
        """What can be looked into for engines: a module, or a list of modules; and who runs what of it, if known."""
        raise NotImplementedError

    def profile_layers(self, feed: Feed, runs: int) -> Layers:
        """Times the layers of the engines, and what PyTorch runs between them.

        Raises:
            Unsupported: if calls are replayed from a CUDA graph, or no engine reports times.
        """
        from inferlens.backends.torch_tensorrt.layers import layers_of

        check_level(self.preparation)
        if self._graph is not None:
            raise Unsupported("A CUDA graph replays kernels and tells no layers.", hint="without cuda_graph")
        layers, bindings = layers_of(self, self._interior(), feed, runs)
        self.preparation.facts["engine_bindings"] = bindings
        return layers

    def scopes(self) -> AbstractContextManager[Any]:
        """Names in the trace for what PyTorch runs between engines."""
        from inferlens.backends.torch_tensorrt.kernel_origins import part_scopes

        return part_scopes(self._interior().children)

    def origins(self, launched: Sequence[Launched]) -> Origins:
        """Layers of the engines, and parts that PyTorch runs."""
        from inferlens.backends.torch_tensorrt.kernel_origins import origins_in

        interior = self._interior()
        told = interior.told()
        return origins_in(launched, told.every, interior.parts(), told.absent)

    def _interior(self) -> Interior:
        from inferlens.backends.torch_tensorrt.inspector import origin_among
        from inferlens.backends.torch_tensorrt.layers import Interior

        compiled, segments = self.inside()
        paths = frozenset(path for path, _ in self.model.module.named_modules()) if self.model.module else frozenset()
        folder = self.preparation.folder / "engine-reports"
        return Interior(compiled, segments, folder, import_module(self.library.package), origin_among(paths))

    def device_memory(self) -> None:
        """Not told: engines take memory past PyTorch's allocator."""

    def __exit__(self, *error: Any) -> None:
        self._call = not_entered
        self._graph = None
        super().__exit__(*error)
