"""Operators: how often each was called, and what it took on the host and on the GPU."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferlens.trace.costs import Costs
from inferlens.trace.table import SECOND, Groups, Table
from inferlens.trace.trace import Bools

KEYS = ("shapes", "stack")


def operators(costs: Costs, *, by: tuple[str, ...] = (), within: Bools | None = None) -> Table:
    """A row for each operator, what takes most on the GPU first, or without one on the host.

    Args:
        costs: of the trace.
        by: told apart not by name alone: ``shapes`` of the inputs, ``stack`` of calls.
        within: which of the trace's scopes count; all by default.

    Returns:
        Times in seconds. ``tensor_share`` is that of kernels with tensor cores in the operator's GPU time; ``eligible``
        says whether it could use them. Times on a GPU are NaN where the trace has no GPU events.
    """
    trace = costs.trace
    places = np.flatnonzero(costs.is_operator if within is None else costs.is_operator & within)
    scopes = trace.scopes
    keys = [trace.name[scopes.row[places]], *(getattr(scopes, key)[places] for key in by)]
    groups = Groups.by(*keys)
    first = places[groups.first]
    device, tensor = groups.sum(costs.device_total[places]), groups.sum(costs.tensor_total[places])
    columns: dict[str, Any] = {"name": trace.names_of(scopes.row[first])}
    for key in by:
        columns[key] = [_compact(trace.texts[code]) for code in getattr(scopes, key)[first].tolist()]
    columns |= {
        "calls": groups.count,
        "host_self": groups.sum(costs.host_self[places]) / SECOND,
        "host_total": groups.sum(costs.host_total[places]) / SECOND,
        "device_self": _if_gpu(groups.sum(costs.device_self[places]) / SECOND, costs),
        "device_total": _if_gpu(device / SECOND, costs),
        "eligible": groups.sum(costs.eligible[places]) > 0,
        "tensor_share": np.divide(tensor, device, out=np.full(len(device), np.nan), where=device > 0),
    }
    table = Table(columns)
    has_device = float(np.max(device, initial=0.0)) > 0
    return table.sorted_by("host_self").sorted_by("device_self") if has_device else table.sorted_by("host_self")


def _compact(text: str) -> str:
    """JSON without blanks, which writers set as they like; a text of JSON as itself."""
    try:
        value = msgspec.json.decode(text) if text else ""
    except msgspec.DecodeError:
        return text
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _if_gpu(seconds: NDArray[np.float64], costs: Costs) -> NDArray[np.float64]:
    """Times on a GPU; not known where the trace has none."""
    return seconds if len(costs.trace.gpu) else np.full(len(seconds), np.nan)
