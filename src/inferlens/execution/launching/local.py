"""Workers on this machine: the process itself, or a process for each GPU that the plan names.

Such a process sees its GPU alone, by UUID, before anything imports CUDA. It has a share of the cores to itself, so
that nothing is timed while another's build runs on the same cores.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from inferlens.backends.availability import open_nvml
from inferlens.errors import InferlensError
from inferlens.execution import child_process
from inferlens.execution.launching.launcher import Launcher, P, Part, Worker, WorkerLost
from inferlens.execution.protocol import Event, Found, Observer, Told
from inferlens.measure.monitor.cpu import usable_cpus
from inferlens.measure.monitor.gpu import visible
from inferlens.record.record import VISIBLE
from inferlens.spec.plan import Plan

ALL = "all"
TOPOLOGY = "/sys/devices/system/cpu"


class Card(Struct, frozen=True):
    """A GPU: its name, UUID, and the CPUs that are near to it, as far as they are known."""

    name: str
    uuid: str
    near: frozenset[int] = frozenset()


class Local(Launcher):
    """This process; or, of a plan that names devices, a worker for each."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.apart = bool(plan.where.on)
        self._stopping = threading.Event()
        self._running: set[int] = set()
        if not self.apart:
            return
        here = cards()
        chosen = chosen_of(plan.where.on, here)
        cores = shares([here[index] for index in chosen], sorted(usable_cpus()))
        several = len({here[index].name for index in chosen}) > 1
        self._workers = [
            OnCard(here[index], share, here[index].name if several else "", self)
            for index, share in zip(chosen, cores, strict=True)
        ]
        for worker in self._workers:
            worker.neighbours = len(self._workers) - 1

    def workers(self, most: int) -> Sequence[Worker]:
        """See :class:`Launcher`."""
        if not self.apart:
            return [Here()]
        place: Counter[str] = Counter()
        found = []
        for worker in self._workers:
            place[worker.kind] += 1
            if place[worker.kind] <= most:
                found.append(worker)
        return found

    def began(self, pid: int) -> None:
        """A worker's process is there."""
        self._running.add(pid)
        if self._stopping.is_set():
            self._interrupt(pid)

    def ended(self, pid: int) -> None:
        """And is not any more."""
        self._running.discard(pid)

    def stop(self) -> None:
        """See :class:`Launcher`: as by Ctrl-C, so that workers end what they have started."""
        self._stopping.set()
        for pid in list(self._running):
            self._interrupt(pid)

    @staticmethod
    def _interrupt(pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)


class Here(Worker):
    """This process."""

    def do(self, part: Part[P, Found], job: P, observer: Observer) -> Found:
        """See :class:`Worker`."""
        return part(job, observer)


class OnCard(Worker):
    """A process for each part, which sees one GPU and runs on some of the CPUs."""

    def __init__(self, card: Card, cpus: Sequence[int], kind: str, launcher: Local) -> None:
        self.card, self.cpus, self.kind, self._launcher = card, cpus, kind, launcher
        self.gpu = card.uuid

    def do(self, part: Part[P, Found], job: P, observer: Observer) -> Found:
        """See :class:`Worker`."""
        pids: list[int] = []

        def started(pid: int) -> None:
            pids.append(pid)
            self._launcher.began(pid)

        def heard(event: Event) -> None:
            if isinstance(event, Told):
                getattr(observer, event.what)(*event.opened())

        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cpus)  # of this thread, and so of all that it starts
        variables = {VISIBLE: self.gpu}
        try:
            outcome = child_process.launch(
                part, job, timeout=math.inf, on_event=heard, variables=variables, started=started
            )
        finally:
            for pid in pids:
                self._launcher.ended(pid)
        if not outcome.answered:
            raise WorkerLost(" ".join([outcome.result.reason, *outcome.tail[-1:]]))
        return outcome.found(f"What runs on {self.card.name} failed")


def cards() -> list[Card]:
    """The GPUs of this machine that may be used, in the order of nvidia-smi or of ``CUDA_VISIBLE_DEVICES``."""
    with suppress(Exception), open_nvml() as nvml:  # a missing library and a missing driver mean the same
        return [Card(str(nvml.nvmlDeviceGetName(each)), str(nvml.nvmlDeviceGetUUID(each)), _near(nvml, each))
                for each in visible(nvml)]  # fmt: skip
    return []


def _near(nvml: Any, handle: Any) -> frozenset[int]:
    words = (max(os.cpu_count() or 1, max(usable_cpus()) + 1) + 63) // 64
    with suppress(Exception):  # not every system tells
        masks = nvml.nvmlDeviceGetCpuAffinity(handle, words)
        return frozenset(64 * word + bit for word, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1)
    return frozenset()


def chosen_of(names: Sequence[str], here: Sequence[Card]) -> list[int]:
    """Return the places of GPUs by name: ``cuda:1``, the beginning of a UUID, or ``all``. Raises InferlensError."""
    if not here:
        raise InferlensError(
            "There is no NVIDIA GPU here for --devices.", hint="without --devices; nvidia-smi lists them"
        )
    expected = f"all, or some of {', '.join(f'cuda:{index}' for index in range(len(here)))}"
    found: list[int] = []
    for name in names:
        if name == ALL:
            found += range(len(here))
            continue
        word, colon, number = name.partition(":")
        uuids = [index for index, card in enumerate(here) if card.uuid.lower().startswith(name.lower())]
        if word == "cuda" and colon and number.isdecimal() and int(number) < len(here):
            found.append(int(number))
        elif len(uuids) == 1:
            found += uuids
        else:
            raise InferlensError(f"There is no device '{name}' here.", expected=expected)
    return list(dict.fromkeys(found))


def shares(cards: Sequence[Card], cpus: Sequence[int], topology: Path = Path(TOPOLOGY)) -> list[list[int]]:
    """Return whole cores for each card, near to it where possible. Raises InferlensError for fewer cores than cards."""
    near = [card.near & set(cpus) or frozenset(cpus) for card in cards]
    groups = list(dict.fromkeys(near))
    if any(a & b for place, a in enumerate(groups) for b in groups[:place]):
        near, groups = [frozenset(cpus)] * len(cards), [frozenset(cpus)]
    found: dict[int, list[int]] = {}
    for group in groups:
        members = [index for index, each in enumerate(near) if each == group]
        cores = list(dict.fromkeys(_siblings(cpu, topology) & group for cpu in sorted(group)))
        if len(cores) < len(members):
            raise InferlensError(
                f"{len(members)} devices share {len(cores)} CPU core{'s' * (len(cores) != 1)}, and each needs one.",
                hint="--devices with fewer",
            )
        for place, index in enumerate(members):
            mine = cores[place * len(cores) // len(members) : (place + 1) * len(cores) // len(members)]
            found[index] = sorted(cpu for core in mine for cpu in core)
    return [found[index] for index in range(len(cards))]


def _siblings(cpu: int, topology: Path) -> frozenset[int]:
    with suppress(OSError, ValueError):
        text = (topology / f"cpu{cpu}/topology/thread_siblings_list").read_text("utf-8")
        ranges = [part.split("-") for part in text.strip().split(",")]
        return frozenset(each for ends in ranges for each in range(int(ends[0]), int(ends[-1]) + 1))
    return frozenset((cpu,))
