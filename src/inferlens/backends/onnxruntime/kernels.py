"""The kernels of ONNX Runtime's CUDA provider, and the nodes that launched them.

The packages of ONNX Runtime are built without CUPTI: its profile says when the host was in each node, and has no
kernels. torch.profiler sees the kernels, and when each was launched. Both read the system's clock. So one call is
traced by both, and a kernel belongs to the node that began last before its launch.

The replay of a CUDA graph calls no nodes. The traced call runs without the graph, in the same session, whose
algorithms are chosen: it launches the kernels that the graph replays.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from pathlib import Path

import msgspec

from inferlens.backends.abilities import KernelOrigin, KernelOrigins, Launched, LayerProfiler, Origins
from inferlens.backends.onnx.modules import OnnxNodes, origins
from inferlens.backends.onnxruntime.profile import OPTIMISED, Fusion, ProfileEvent, layer, runs_of, unknown_modules
from inferlens.backends.onnxruntime.runner import CudaRunner, DeviceFeed
from inferlens.backends.profiling.kernel_matching import MatchedKernels, origins_by_match
from inferlens.backends.profiling.kernel_runs import kernels_of, layers_of_kernels
from inferlens.backends.profiling.layer_runs import check_level
from inferlens.backends.profiling.traced_runs import TracedRun, one_run
from inferlens.record.layer_profile import Layer, Layers

APART = "not known: the clocks of ONNX Runtime's profile and of torch.profiler's trace differ."


class CudaNodeRunner(CudaRunner, LayerProfiler, KernelOrigins):
    """ONNX Runtime with its CUDA provider: its layers are the nodes of the optimised graph, timed by their kernels."""

    profiled_levels = ("layer", "kernel")
    _matched: MatchedKernels | None = None

    def profile_layers(self, feed: DeviceFeed, runs: int) -> Layers:
        check_level(self.preparation)
        kernels = kernels_of(self, feed, runs, self.case.backend_label)
        return layers_of_kernels(kernels, self._matched.layers if self._matched else ())

    def origins(self, launched: Sequence[Launched]) -> Origins:
        """The nodes and modules of the same kernels in one call that both profilers trace."""
        if self._matched is None:
            assert self._written
            replaying, self._run_options = self._run_options, self.run_options(captured=False)
            run = one_run(self, self._bound, on_gpu=True)
            self._run_options = replaying
            text = Path(self._loaded.end_profiling()).read_bytes()
            self._matched = kernels_by_node(
                run,
                msgspec.json.decode(text, type=list[ProfileEvent]),
                self._loaded.get_profiling_start_time_ns(),
                origins(self.path),
                origins(Path(self._written.name) / OPTIMISED),
            )
        return origins_by_match(launched, self._matched)


def kernels_by_node(
    run: TracedRun, events: list[ProfileEvent], began: int, graph: OnnxNodes, optimised: OnnxNodes
) -> MatchedKernels:
    """Return the kernels, copies and fills of a traced run, the last one of a profile, with their nodes.

    Args:
        events: of ONNX Runtime's profile, which ``began`` so many nanoseconds after 1970.
        graph: as it was given; ``optimised``: as it ran.
    """
    ((_, nodes),) = runs_of(events, 1)
    fusion = Fusion(graph, optimised)
    begins = [began + 1000 * node.ts - run.begin for node in nodes]
    if begins[0] < 0 or begins[-1] > run.whole * 1e9:
        return MatchedKernels([], {"modules": APART})
    kernels: list[tuple[Launched, KernelOrigin]] = []
    layers: dict[str, Layer] = {}
    for event in run.events:
        place = bisect(begins, event.launch) - 1
        if place >= 0:
            own = layer(nodes[place], fusion)
            kernels.append((event.launched, KernelOrigin(own.name, own.modules)))
            layers.setdefault(own.name, own)
    return MatchedKernels(kernels, unknown_modules(layers.values(), graph), tuple(layers.values()))
