"""A kernel that lasts as long as it is told, by the GPU's own timer, and writes down how long it truly lasted.

``%globaltimer`` counts nanoseconds on the GPU (PTX ISA, special registers), in steps that differ between GPUs. Each
call writes its first and its last reading to the next two places of a buffer, so that it may be replayed by a CUDA
graph too. What it lasts beyond these readings (to start, to write them down, to end) is in no reading.

Needs Triton and a GPU: import it where both are known to be there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl


@triton.jit
def _spin(times, calls, nanoseconds):
    call = tl.load(calls)  # arrives while it spins
    begin = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    now = begin
    while now - begin < nanoseconds:
        now = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    tl.store(times + 2 * call, begin)
    tl.store(times + 2 * call + 1, now)
    tl.store(calls, call + 1)


class Spin:
    """Calls of the kernel, and what they truly took."""

    def __init__(self, nanoseconds: int, most: int) -> None:
        import torch

        self._times = torch.zeros(2 * most, dtype=torch.int64, device="cuda")
        self._calls = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._nanoseconds = nanoseconds

    def __call__(self, feed: Any = None) -> None:  # noqa: ARG002 - as a runner's infer
        """One call, enqueued on the current stream."""
        _spin[(1,)](self._times, self._calls, self._nanoseconds, num_warps=1)

    def graph(self) -> Callable[[Any], None]:
        """The call as a replay of a CUDA graph, which is enqueued faster."""
        import torch

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):  # compiled before the capture
            self()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self()
        return lambda _: graph.replay()

    def forget(self) -> None:
        """Begins at the first place again."""
        self._calls.zero_()

    def readings(self) -> list[tuple[int, int]]:
        """First and last reading of every call since :meth:`forget`, in nanoseconds."""
        flat = self._times[: 2 * int(self._calls.item())].tolist()
        return list(zip(flat[::2], flat[1::2], strict=True))
