"""Peak memory of this process, on the host and on the device."""

from __future__ import annotations

import resource
import sys

from inferlens.backends.base import Runner
from inferlens.record import Memory


def peak(runner: Runner | None) -> Memory:
    """Peak memory so far. Device memory is absent where the backend does not tell.

    ``ru_maxrss`` counts everything the process ever had resident: interpreter, libraries, model, buffers (getrusage(2);
    KiB on Linux, bytes on macOS).
    """
    unit = 1 if sys.platform == "darwin" else 1024
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    device = runner.device_memory() if runner else None
    return Memory(
        host_peak=host,
        host_basis="peak resident set of the case's process, libraries included",
        device_peak=device[0] if device else None,
        device_basis=device[1] if device else "",
    )
