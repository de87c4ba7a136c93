"""One call of PyTorch code as a CUDA graph: captured once, replayed with a single launch.

A replay reads and writes the very tensors of the capture. A new feed is therefore copied into the captured inputs,
once, when it is first seen; replaying with the same feed again copies nothing, as with every other runner whose inputs
lie ready on the device. The outputs of one replay are overwritten by the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferlens.backends.availability import first_lines
from inferlens.errors import Unsupported

Feed = tuple[Any, ...]
WARMUP = 3  # calls before the capture, on a stream of their own, in which cuDNN and cuBLAS initialise themselves


class CudaGraph:
    """A captured call."""

    def __init__(self, graph: Any, inputs: Feed, outputs: Any) -> None:
        self._graph = graph
        self._inputs = inputs
        self._outputs = outputs
        self._bound: Feed | None = None

    @staticmethod
    def capture(call: Callable[..., Any], feed: Feed) -> CudaGraph:
        """Warms ``call`` up on a side stream and captures it with copies of ``feed`` as its inputs.

        Raises:
            Unsupported: if it cannot be captured.
        """
        import torch

        inputs = tuple(tensor.clone() for tensor in feed)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                call(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                outputs = call(*inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise Unsupported(
                f"The model cannot be captured in a CUDA graph: {first_lines(error)}", hint="without cuda_graph"
            ) from error
        return CudaGraph(graph, inputs, outputs)

    def __call__(self, feed: Feed) -> Any:
        """Replays on the current stream; returns the outputs' tensors, the same ones every time."""
        if feed is not self._bound:
            self.bind(feed)
        self._graph.replay()
        return self._outputs

    @property
    def inputs(self) -> Feed:
        """The captured inputs, which a replay reads."""
        return self._inputs

    def bind(self, feed: Feed) -> None:
        """Copies ``feed`` into the captured inputs, in order with the replays of the current stream."""
        for own, tensor in zip(self._inputs, feed, strict=True):
            if own.shape != tensor.shape:
                raise Unsupported(
                    f"The CUDA graph holds inputs of shape {tuple(own.shape)}, not {tuple(tensor.shape)}."
                )
            own.copy_(tensor)
        self._bound = feed
