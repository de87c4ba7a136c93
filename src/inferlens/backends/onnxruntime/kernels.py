"""The kernels of ONNX Runtime's CUDA provider, and the nodes that launched them.

The packages of ONNX Runtime are built without CUPTI: its profile says when the host was in each node, and has no
kernels. torch.profiler sees the kernels, and when each was launched. Both read the system's clock. So one call is
traced by both, the nodes become scopes of the trace, and a kernel belongs to the node around its launch.

The replay of a CUDA graph calls no nodes. The traced call runs without the graph, in the same session, whose
algorithms are chosen: it launches the kernels that the graph replays.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from inferlens.backends.abilities import KernelOrigin, KernelOrigins, Launched, LayerProfiler, Origins
from inferlens.backends.onnx.modules import OnnxNodes, origins
from inferlens.backends.onnxruntime.profile import OPTIMISED, Fusion, ProfileEvent, layer, runs_of, unknown_modules
from inferlens.backends.onnxruntime.runner import CudaRunner, DeviceFeed
from inferlens.backends.profiling.kernel_matching import MatchedKernels, origins_by_match
from inferlens.backends.profiling.kernel_runs import kernels_of, layers_of_kernels
from inferlens.backends.profiling.layer_runs import check_level
from inferlens.backends.profiling.traced_runs import KERNEL, OURS, SPAN, Spanned, profiler, traced_runs
from inferlens.record.layer_profile import Layer, Layers
from inferlens.trace import Trace, read

NODE = f"{OURS}node "


class CudaNodeRunner(CudaRunner, LayerProfiler, KernelOrigins):
    """ONNX Runtime with its CUDA provider: its layers are the nodes of the optimised graph, timed by their kernels."""

    profiled_levels = ("layer", "kernel")
    _matched: MatchedKernels | None = None

    def __exit__(self, *error: Any) -> None:
        self._matched = None
        super().__exit__(*error)

    def profile_layers(self, feed: DeviceFeed, runs: int) -> Layers:
        check_level(self.preparation)
        kernels = kernels_of(self, feed, runs, self.case.backend_label)
        return layers_of_kernels(kernels, self._matched.layers if self._matched else ())

    def origins(self, launched: Sequence[Launched]) -> Origins:
        """The nodes and modules of the same kernels in one call that both profilers trace."""
        if self._matched is None:
            self._matched = self._traced_call()
        return origins_by_match(launched, self._matched)

    def _traced_call(self) -> MatchedKernels:
        assert self._written
        assert self._bound is not None
        folder = Path(self._written.name)
        replaying, self._run_options = self._run_options, self.run_options(captured=False)
        with profiler(on_gpu=True) as profile:
            for call in (self, Spanned(self)):  # the profiler sets itself up in the first one
                call.infer(self._bound)
                call.synchronize()
        self._run_options = replaying
        profile.export_chrome_trace(str(folder / "trace.json"))
        events = msgspec.json.decode(Path(self._loaded.end_profiling()).read_bytes(), type=list[ProfileEvent])
        began = self._loaded.get_profiling_start_time_ns()
        trace = (folder / "trace.json").read_bytes()
        return kernels_by_node(trace, events, began, origins(self.path), origins(folder / OPTIMISED))


def kernels_by_node(
    trace: bytes, events: list[ProfileEvent], began: int, graph: OnnxNodes, optimised: OnnxNodes
) -> MatchedKernels:
    """Return the kernels of the last run of a profile, which ``trace`` saw too, with the nodes that launched them.

    Args:
        trace: what torch.profiler wrote, as text; the run is in a span.
        events: of ONNX Runtime's profile, which ``began`` so many nanoseconds after 1970.
        graph: as it was given; ``optimised``: as it ran.
    """
    ((_, nodes),) = runs_of(events, 1)
    (run,) = traced_runs(with_nodes(trace, nodes, began))
    fusion = Fusion(graph, optimised)
    layers = [layer(node, fusion) for node in nodes]
    kernels: list[tuple[Launched, KernelOrigin]] = []
    used: dict[str, Layer] = {}
    for launched in (event.launched for event in run.events if event.launched.kind == KERNEL):
        place = _node_around(launched)
        if place is None:
            kernels.append((launched, KernelOrigin()))
        else:
            own = used.setdefault(layers[place].name, layers[place])
            kernels.append((launched, KernelOrigin(own.name, own.modules)))
    return MatchedKernels(kernels, unknown_modules(used.values(), graph), tuple(used.values()))


def with_nodes(text: bytes, nodes: Sequence[ProfileEvent], began: int) -> Trace:
    """Return the trace with each node as a scope, named by its place in ``nodes``, around what it launched.

    ONNX Runtime rounds down to microseconds, so a scope lasts until the next one begins.
    """
    content = msgspec.json.decode(text)
    (span,) = (event for event in content["traceEvents"] if event.get("name") == SPAN and event.get("ph") == "X")
    offset = (began - content.get("baseTimeNanoseconds", 0)) / 1e3
    ends = [max(node.end, following.ts) for node, following in pairwise(nodes)] + [node.end for node in nodes[-1:]]
    for place, (node, end) in enumerate(zip(nodes, ends, strict=True)):
        where = {"ph": "X", "cat": "user_annotation", "name": f"{NODE}{place}", "pid": span["pid"], "tid": span["tid"]}
        content["traceEvents"].append({**where, "ts": node.ts + offset, "dur": end - node.ts})
    return read(msgspec.json.encode(content))


def _node_around(launched: Launched) -> int | None:
    """Return the place of the innermost node around a launch; None outside of all nodes."""
    places = [int(name.removeprefix(NODE)) for name in launched.around if name.startswith(NODE)]
    return places[-1] if places else None
