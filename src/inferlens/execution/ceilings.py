"""The ceilings of a device, measured once and kept in the cache folder, for as long as machine and library stay.

They are measured in a process of their own, as everything that is timed, and only where a profile needs them. Those
that something else on the machine made lower are used once and not kept.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec

from inferlens.execution.protocol import CeilingsAnswer, CeilingsJob
from inferlens.execution.subprocess import launch
from inferlens.record.files import write_whole
from inferlens.record.record import Environment
from inferlens.record.work import Ceilings
from inferlens.spec.case import Case

# Part of the name of what is kept: another way of measuring has another.
RECIPE = "1"
TIMEOUT = 120.0
LIBRARY = "torch"


class Kept:
    """The ceilings of one machine's devices."""

    def __init__(self, cache: Path, environment: Environment, rebuild: bool = False) -> None:
        """
        Args:
            cache: the folder of what is worth keeping between cases.
            environment: the machine and its libraries.
            rebuild: whether what is kept is to be measured anew, once.
        """
        self._cache = cache
        self._environment = environment
        self._rebuild = rebuild
        self._known: dict[Path, Ceilings] = {}

    def of(self, case: Case) -> Ceilings:
        """Those of the device and threads of ``case``; without a bandwidth, and with the reason, if there are none."""
        device = self._device(case)
        file = self._file(case, device)
        if file not in self._known:
            kept = None if self._rebuild else _read(file)
            self._known[file] = kept or self._measured(case, device, file)
        return self._known[file]

    def _device(self, case: Case) -> str:
        gpus = self._environment.gpus
        if case.device == "cpu":
            return self._environment.cpu or "CPU"
        return gpus[0].name if gpus else case.device

    def _file(self, case: Case, device: str) -> Path:
        """Where they are kept: what they depend on is in the name."""
        machine = self._environment
        own: list[object] = [machine.cpu_threads, case.threads] if case.device == "cpu" else [machine.driver]
        depends = [RECIPE, device, *own, machine.libraries.get(LIBRARY), sorted(machine.variables.items())]
        return self._cache / f"ceilings-{hashlib.sha256(msgspec.json.encode(depends)).hexdigest()[:12]}.json"

    def _measured(self, case: Case, device: str, file: Path) -> Ceilings:
        job = CeilingsJob(device=case.device, name=device, threads=case.threads if case.device == "cpu" else None)
        outcome = launch(job, timeout=TIMEOUT)
        answer = CeilingsAnswer(reason=outcome.reason)
        if outcome.answer:
            answer = msgspec.json.decode(outcome.answer, type=CeilingsAnswer)
        if answer.ceilings is None:
            return Ceilings(device=device, bandwidth=0.0, rates={}, absent={"all": answer.reason})
        if not answer.ceilings.disturbed:
            write_whole(file, msgspec.json.format(msgspec.json.encode(answer.ceilings), indent=1) + b"\n")
        return answer.ceilings


def _read(file: Path) -> Ceilings | None:
    """What is kept; ``None`` if nothing is, or it cannot be read."""
    with suppress(OSError, msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(file.read_bytes(), type=Ceilings)
    return None
