"""How long the overview, operators and kernels of a trace take, and how much memory, beside HTA and torch-tb-profiler.

Each tool runs as a process of its own from a cold start, in turns with the others, and the least of three times counts;
memory is the most that the process had. All run compiled, as pip installs them, whatever the checkout has. Those of our
peers that can be imported take part, by the Python that the environment variable ``TRACE_PEERS`` names, or else this
one. To install them there:
``pip install torch-tb-profiler==0.4.3 traceinsight pandas``.
AMD's TraceLens is on GitHub alone; ``tracelens`` on PyPI is something else.

Traces: those named on the command line, or else one of 200 MB that torch.profiler makes here, and of 1,000 MB too with
``TRACE_LARGE=1``; a tool that takes longer than ten minutes is given up.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.trace_make import make

ROUNDS = 3
DEADLINE = 600
VIEWS = "overview,operators,kernels"
TENSORBOARD = """
import logging, sys
logging.disable(logging.CRITICAL)
import numpy, pandas
from torch_tb_profiler.profiler.data import RunProfileData
data = RunProfileData.parse("worker", None, sys.argv[1], "/nowhere")
assert data.op_list_groupby_name is not None and data.avg_costs is not None
"""
HTA = """
import logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
for ask in ("get_temporal_breakdown", "get_gpu_kernel_breakdown"):
    try:
        getattr(analysis, ask)(visualize=False)
    except Exception:
        pass  # a trace of the CPU has none of it; reading is most of the time
"""
PEERS = {"HTA": ("hta", HTA), "torch-tb-profiler": ("torch_tb_profiler", TENSORBOARD)}
# Run in a process between, so that the most memory of a child is that of this child alone.
_MEASURE = """
import resource, subprocess, sys, time
begin = time.perf_counter()
done = subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=float(sys.argv[1]))
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(done.returncode, time.perf_counter() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


def main(paths: Sequence[str] = ()) -> None:
    """Prints a table for each trace."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
        traces = [Path(path) for path in paths] or _made(Path(folder))
        for trace in traces:
            _table(trace)


def _made(folder: Path) -> list[Path]:
    traces = []
    for megabytes in (200, 1000) if os.environ.get("TRACE_LARGE") else (200,):
        traces.append(folder / f"{megabytes}-MB.json")
        make(traces[-1], megabytes)
    return traces


def _table(trace: Path) -> None:
    peers = os.environ.get("TRACE_PEERS", sys.executable)
    ours = [sys.executable, "-m", "inferlens", "trace", str(trace), "--view", VIEWS]
    commands = {"inferlens trace": ours}
    for name, (module, script) in PEERS.items():
        if _has(peers, module):
            commands[name] = [peers, "-c", script, str(trace)]
    runs: dict[str, list[tuple[float, float, float] | str]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            if not any(isinstance(run, str) for run in runs[name]):
                runs[name].append(_run(command))
    table = Table(title=f"{trace.name}, {trace.stat().st_size / 1e6:,.0f} MB", title_justify="left")
    for title in ("tool", "time, s", "CPU time, s", "memory, MiB", "times ours"):
        table.add_column(title, justify="left" if title == "tool" else "right")
    base = min((run[0] for run in runs["inferlens trace"] if not isinstance(run, str)), default=0.0)
    for name, of in runs.items():
        failed = [run for run in of if isinstance(run, str)]
        if failed:
            table.add_row(name, failed[0])
            continue
        wall, cpu, memory = (min(run[place] for run in of if not isinstance(run, str)) for place in range(3))
        table.add_row(name, f"{wall:.2f}", f"{cpu:.2f}", f"{memory:.0f}", f"{wall / base:.1f}" if base else "")
    for name in PEERS:
        if name not in commands:
            table.add_row(name, "not installed")
    Console(width=120).print(table)


def _has(python: str, module: str) -> bool:
    done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
    return done.returncode == 0


def _run(command: Sequence[str]) -> tuple[float, float, float] | str:
    """Wall and CPU seconds, and MiB; or why there are none."""
    measured = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(DEADLINE), *command], capture_output=True, text=True, check=False
    )
    words = measured.stdout.split()
    if not words:
        return f"longer than {DEADLINE} s"
    if words[0] != "0":
        return f"failed with {words[0]}"
    return float(words[1]), float(words[2]), float(words[3])


if __name__ == "__main__":
    main(sys.argv[1:])
