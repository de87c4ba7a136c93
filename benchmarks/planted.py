"""Backends that are real ones made slower by a known share: what a search for slowdowns is tried on.

After each call of the real backend they wait, busy, for a share of the time that this very call took. So the slower
case is slower by that share at any moment, however fast the machine is at the time; what it computes stays the same.
Taking the time and looking at the deadline adds a fraction of a microsecond.

On CUDA, where a call returns before its work is done, a kernel that sleeps is enqueued behind it instead. It takes that
share of what the first calls took in the middle, the same for all calls of a process.

They come in as anybody's backend does, by an entry point: :func:`installed` writes a package's metadata to a folder
and puts that on the import path, which the processes of cases inherit.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from inferlens.backends.base import Backend, Preparation, Runner
from inferlens.backends.clocks import CudaClock
from inferlens.backends.onnxruntime import backend as onnxruntime
from inferlens.backends.pytorch import backend as pytorch
from inferlens.models.model import Model
from inferlens.spec.case import Case

_SHARE = Annotated[float, Meta(description="of each call's time, waited after it", ge=0)]
_ENTRY_POINTS = """[inferlens.backends]
slowed_onnxruntime = benchmarks.planted:SlowedOnnxRuntime
slowed_pytorch = benchmarks.planted:SlowedPyTorch
"""


class OnnxOptions(onnxruntime.OnnxRuntimeOptions, frozen=True, forbid_unknown_fields=True):
    """ONNX Runtime's, and by how much it is slower."""

    slower: _SHARE = 0.03


class TorchOptions(pytorch.PyTorchOptions, frozen=True, forbid_unknown_fields=True):
    """PyTorch's, and by how much it is slower."""

    slower: _SHARE = 0.03


class Slowed(Backend):
    """A backend whose runners are slower, by the option of that name."""

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        """The backend's own runner, slower."""
        runner = super().prepare(model, case, preparation)
        wait = SlowedOnGpu if case.device == "cuda" else slowed
        runner.infer = wait(runner.infer, self.parse_options(case).slower)  # type: ignore[method-assign]
        return runner


class SlowedOnnxRuntime(Slowed, onnxruntime.OnnxRuntime):
    """ONNX Runtime, slower."""

    name = "slowed_onnxruntime"
    summary = "ONNX Runtime that waits after each call"
    options = OnnxOptions


class SlowedPyTorch(Slowed, pytorch.PyTorch):
    """PyTorch, slower."""

    name = "slowed_pytorch"
    summary = "PyTorch that waits after each call"
    options = TorchOptions


def slowed(infer: Callable[[Any], Any], share: float) -> Callable[[Any], Any]:
    """``infer``, and then a busy wait of ``share`` of the time that it took."""
    now = time.perf_counter_ns

    def call(feed: Any) -> Any:
        begin = now()
        outputs = infer(feed)
        end = now()
        deadline = end + int(share * (end - begin))
        while now() < deadline:
            pass
        return outputs

    return call


class SlowedOnGpu:
    """``infer``, and behind it on the same stream a kernel that sleeps for ``share`` of the latency of calls."""

    WARMUP, CALLS, SLEEP = 20, 50, 10_000_000  # calls, calls, and the clock cycles by which a sleep is measured

    def __init__(self, infer: Callable[[Any], Any], share: float) -> None:
        self._infer, self._share, self._cycles = infer, share, 0

    def __call__(self, feed: Any) -> Any:
        """One call, enqueued."""
        import torch

        outputs = self._infer(feed)
        self._cycles = self._cycles or self._worth(feed)
        torch.cuda._sleep(self._cycles)
        return outputs

    def _worth(self, feed: Any) -> int:
        """How many cycles the share is, by the first calls and a sleep of a known number of cycles."""
        import torch

        def middle(call: Callable[[Any], Any]) -> float:
            return statistics.median(CudaClock().time(call, itertools.repeat(feed), self.CALLS).latency)

        CudaClock().time(self._infer, itertools.repeat(feed), self.WARMUP)
        return int(self._share * middle(self._infer) / middle(lambda _: torch.cuda._sleep(self.SLEEP)) * self.SLEEP)


@contextmanager
def installed() -> Iterator[None]:
    """These backends known to Inferlens, in this process and in those it starts. Enter before any backend is named."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "inferlens_planted-0.dist-info")
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: inferlens-planted\nVersion: 0\n")
        (package / "entry_points.txt").write_text(_ENTRY_POINTS)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)
