"""Peak memory of this process, on the host and on the device."""

from __future__ import annotations

import resource
import sys

from inferlens.backends.base import Runner
from inferlens.record import Memory


def peak(runner: Runner | None) -> Memory:
    """Peak memory so far, by the process's and the library's own account.

    ``ru_maxrss`` counts everything the process ever had resident: interpreter, libraries, model, buffers (getrusage(2);
    KiB on Linux, bytes on macOS). What the device says of the process is read from outside, see ``machine``.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    library = runner.device_memory() if runner else None
    return Memory(
        host_peak=host,
        host_basis="peak resident set of the case's process, libraries included",
        library_peak=library[0] if library else None,
        library_basis=library[1] if library else "",
        parts=runner.memory_parts() if runner else {},
    )
