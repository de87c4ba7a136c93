"""Calls that begin and end on the host: copies in, the inference, copies out, all in one call and on one stream.

Inputs come from, and outputs go to, page-locked ("pinned") memory, which the GPU copies by itself; from ordinary memory
the driver would copy twice and block the call. The stages are named as trtexec names them: H2D, compute, D2H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inferlens.backends.base import Inputs, Outputs, Runner
from inferlens.backends.clocks import StagedClock
from inferlens.models.inputs import flatten


@dataclass(frozen=True)
class HostFeed:
    """A feed on the device, the tensors that a call with it reads, and in their order what each is filled from."""

    device: Any
    read: list[Any]
    pinned: list[Any]


class HostIo(Runner):
    """Runs another runner, whose feeds and outputs are PyTorch's tensors on the GPU, with copies in and out."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self._outputs: Any = None
        self._host: list[Any] = []
        self.clock = StagedClock({"H2D time": self._upload, "compute time": self._compute, "D2H time": self._download})

    def __enter__(self) -> HostIo:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._outputs, self._host = None, []
        self._inner.__exit__(*error)

    def place(self, inputs: Inputs) -> HostFeed:
        """The inner runner's feed, and pinned copies of its own tensors: a captured call may still read others."""
        feed = self._inner.place(inputs)
        return HostFeed(feed, self._inner.read_by(feed), [tensor.cpu().pin_memory() for tensor in flatten(feed)])

    def bind(self, feed: HostFeed) -> None:
        self._inner.bind(feed.device)

    def infer(self, feed: HostFeed) -> list[Any]:
        """All three stages, enqueued; the outputs are on the host once the stream has come to its end."""
        self._upload(feed)
        self._compute(feed)
        self._download(feed)
        return self._host

    def synchronize(self) -> None:
        self._inner.synchronize()

    def collect(self, outputs: list[Any]) -> Outputs:
        self._inner.synchronize()
        return self._inner.collect(outputs)

    def device_memory(self) -> tuple[int, str] | None:
        return self._inner.device_memory()

    def memory_parts(self) -> dict[str, int]:
        return self._inner.memory_parts()

    def _upload(self, feed: HostFeed) -> None:
        for tensor, pinned in zip(feed.read, feed.pinned, strict=True):
            tensor.copy_(pinned, non_blocking=True)

    def _compute(self, feed: HostFeed) -> None:
        self._outputs = self._inner.infer(feed.device)

    def _download(self, feed: HostFeed) -> None:  # noqa: ARG002 - a stage is called with the feed
        import torch

        outputs = flatten(self._outputs)
        if not self._host:  # room for the outputs is made by the first call
            self._host = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in outputs]
        for host, tensor in zip(self._host, outputs, strict=True):
            host.copy_(tensor, non_blocking=True)
