"""One call of PyTorch code as a CUDA graph: captured once, replayed with a single launch.

A replay reads and writes the very tensors of the capture. A new feed is therefore copied into the captured inputs,
once, when it is first seen; replaying with the same feed again copies nothing, as with every other runner whose inputs
lie ready on the device. The outputs of one replay are overwritten by the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferlens.backends.availability import refused
from inferlens.errors import Unsupported

Feed = tuple[Any, ...]
WARMUP = 3  # calls before the capture, on a stream of their own, in which cuDNN and cuBLAS initialise themselves


class CudaGraph:
    """A captured call, and the inputs of its own, which a replay reads."""

    def __init__(self, call: Callable[..., Any], feed: Feed) -> None:
        """Warms ``call`` up on a side stream and captures it with copies of ``feed`` as its inputs, or refuses."""
        import torch

        self.inputs = tuple(tensor.clone() for tensor in feed)
        self._bound: Feed | None = None
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                call(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with (
            refused("The model cannot be captured in a CUDA graph", hint="without cuda_graph"),
            torch.cuda.graph(self._graph),
        ):
            self._outputs = call(*self.inputs)

    def __call__(self, feed: Feed) -> Any:
        """Replays on the current stream; returns the outputs' tensors, the same ones every time."""
        if feed is not self._bound:
            self.bind(feed)
        self._graph.replay()
        return self._outputs

    def bind(self, feed: Feed) -> None:
        """Copies ``feed`` into the captured inputs, in order with the replays of the current stream."""
        for own, tensor in zip(self.inputs, feed, strict=True):
            if own.shape != tensor.shape:
                shapes = f"{tuple(own.shape)}, not {tuple(tensor.shape)}"
                raise Unsupported(f"The CUDA graph holds inputs of shape {shapes}.")
            own.copy_(tensor)
        self._bound = feed
