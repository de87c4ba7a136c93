"""Peak memory of this process, on the host and on the device."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

from inferlens.backends.base import Runner
from inferlens.record.record import Memory


def peak(runner: Runner | None) -> Memory:
    """Peak memory so far, by the process's and the library's own account.

    What the device says of the process is read from outside, see ``machine``.
    """
    library = runner.device_memory() if runner else None
    return Memory(
        host_peak=host_peak(),
        host_basis="peak resident set of the case's process, libraries included",
        library_peak=library[0] if library else None,
        library_basis=library[1] if library else "",
        parts=runner.memory_parts() if runner else {},
    )


def host_peak(status: Path = Path("/proc/self/status")) -> int:
    """The most that this process ever had resident, in bytes: interpreter, libraries, model, buffers.

    ``VmHWM`` of proc_pid_status(5), where there is one: it begins anew with the program. ``ru_maxrss`` does not, on
    Linux: there a process inherits that of the one that started it (getrusage(2); KiB on Linux, bytes on macOS).
    """
    with suppress(OSError, ValueError, StopIteration):
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
