"""How far a tool's answer differs from run to run: the same call, timed in many fresh processes, tool after tool.

A tool's answer is the median that it gives with its defaults; each run is a fresh process, and ours take turns with the
others', which share one (each of them warms the call up by itself). Shown are the relative standard deviation of a
tool's answers and the distance of its largest from its smallest, how long it measures, and, where a tool gives an
interval, how often that held the median of all its answers. Ours of a single process covers the noise within it alone,
and says so.

The tools do not time the same thing. On the GPU ours and nvbench give the time of a call that is alone on its stream,
``triton.testing.do_bench`` that of calls which queue up behind a cleared L2 cache, torch.utils.benchmark the seconds of
many calls in a row over their number. Spreads can be compared, medians cannot.

Our runs are then compared with each other, as ``inferlens compare`` does it: each with each, and every half with
the other half. All are runs of the same, so whatever is told apart is a false alarm. With ``--slower 0.03`` a case that
was made slower (see ``planted``) is measured in each round as well, and compared with those of the same rounds.

    python -m benchmarks.spread [--runs 10] [--workload cpu cuda-1 cuda-32] [--slower 0.03] [--minutes 60]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.planted import installed
from inferlens.analysis import samples
from inferlens.execution.cases import backends_named, expand, find, probe
from inferlens.execution.protocol import Observer, PlannedCase
from inferlens.execution.scheduler import Scheduler
from inferlens.record.record import Record
from inferlens.spec.plan import Plan
from inferlens.stats.comparison import compare
from inferlens.stats.intervals import median_interval

WORKLOADS = {
    "cpu": "resnet18 fp32 batch 1, CPU, one thread",
    "cuda-1": "resnet50 fp16 batch 1, CUDA",
    "cuda-32": "resnet50 fp16 batch 32, CUDA",
}
SIDE = 5  # processes on each side of a comparison, as --repeats 5
Answer = dict[str, Any]  # tool, median and perhaps low and high in seconds, seconds of measuring
Series = list[list[float]]  # latencies of processes


def main(words: Sequence[str] = ()) -> None:
    """Prints a table for each workload."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spread")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no run of a workload is begun")
    parser.add_argument("--workload", nargs="*", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--slower", type=float, default=0.0, help="share by which a case is made slower, to be found")
    args = parser.parse_args(words)
    console = Console(width=140)
    gpu = _has_gpu()
    for workload in args.workload:
        if workload.startswith("cuda") and not gpu:
            console.print(f"spread: no NVIDIA GPU with PyTorch here, so nothing of {WORKLOADS[workload]}.")
            continue
        with Ours(workload, args.slower) as ours:
            found, notes = in_turns(ours, args.runs, args.minutes * 60)
        console.print(_table(workload, found))
        for note in itertools.chain(notes, told_apart(ours.series, ours.slower, args.slower)):
            console.print(note, highlight=False)


def in_turns(ours: Ours, runs: int, seconds: float) -> tuple[dict[str, list[Answer]], list[str]]:
    """Every tool's answers, of as many runs as begin in time, and what is to be said of tools that gave none."""
    found: dict[str, list[Answer]] = {}
    notes: dict[str, None] = {}
    deadline = time.monotonic() + seconds
    for _ in range(runs):
        if time.monotonic() > deadline:
            break
        command = [sys.executable, "-m", "benchmarks.spread", "--", ours.workload]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            notes["Others: no answer: " + (done.stderr.strip().splitlines() or ["they said nothing"])[-1]] = None
        for answer in itertools.chain(ours.run(), [] if done.returncode else json.loads(done.stdout.splitlines()[-1])):
            if "why" in answer:
                notes[f"{answer['tool']}: no answer: {answer['why']}"] = None
            else:
                found.setdefault(answer["tool"], []).append(answer)
    return found, list(notes)


class Ours:
    """Inferlens with its default budget, every run a fresh process: latency, and on CUDA GPU time of the same calls.

    Attributes:
        series, slower: latencies of the case's processes, and of the slower one's.
    """

    def __init__(self, workload: str, slower: float = 0.0) -> None:
        self.workload = workload
        self.series: Series = []
        self.slower: Series = []
        self._slower = slower
        self._entered = ExitStack()

    def __enter__(self) -> Ours:
        if self._slower:
            self._entered.enter_context(installed())
        folder = self._entered.enter_context(tempfile.TemporaryDirectory(prefix="inferlens-"))
        gpu = self.workload.startswith("cuda")
        where: dict[str, Any] = {"device": "cuda", "precision": "fp16"} if gpu else {"device": "cpu", "threads": 1}
        plan = Plan.from_words({
            "model": f"benchmarks.spread:{self.workload.replace('-', '_')}", "output": folder, **where,
            "backend": "pytorch,slowed_pytorch" if self._slower else "pytorch",
            "option": [f"slowed_pytorch.slower={self._slower}"] if self._slower else [],
        })  # fmt: skip
        cases = expand(plan, find(plan.model), probe(backends_named(plan)))
        self._cases = sorted(cases, key=lambda planned: planned.case.backend.startswith("slowed"))
        self._scheduler = Scheduler(plan, Observer(), Path(folder))
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def run(self) -> Iterator[Answer]:
        """One process of the case, and one of the slower one, where that is asked for: which is first changes."""
        turn = list(zip(self._cases, (self.series, self.slower), strict=False))
        for planned, series in turn if len(self.series) % 2 else reversed(turn):
            record = self._measured(planned)
            series.append(samples.latencies(record).samples)
            if series is self.series:
                yield from _ours(record)

    def _measured(self, planned: PlannedCase) -> Record:
        record = self._scheduler.measure(planned, len(self.series))[0]
        if record.status != "ok":
            raise RuntimeError(record.reason)
        return record


def _ours(record: Record) -> Iterator[Answer]:
    spent = sum(phase.seconds for phase in record.phases if phase.name in ("warm-up", "steady state"))
    for metric in ("latency", "GPU time") if record.case.device == "cuda" else ("latency",):
        kept = samples.steady_samples(record, metric).samples  # type: ignore[arg-type]
        interval = median_interval(kept)
        yield {
            "tool": f"inferlens, {metric}", "median": statistics.median(kept), "measuring": spent,
            "low": interval.low if interval else None, "high": interval.high if interval else None,
        }  # fmt: skip


def told_apart(same: Series, slower: Series, share: float) -> Iterator[str]:
    """What our runs are called that are all of the same, and what the slower ones are called beside them."""
    runs = range(len(same))
    one = [([same[a]], [same[b]]) for a, b in itertools.combinations(runs, 2)]
    yield f"The same, 1 + 1 processes: {_verdicts(one)}."
    side = min(SIDE, len(same) // 2)
    if side > 1:
        halves = [
            ([same[run] for run in half], [same[run] for run in runs if run not in half][:side])
            for half in itertools.combinations(runs, side)
        ]
        yield f"The same, {side} + {side} processes, every choice of them: {_verdicts(halves)}."
    if slower:
        change = statistics.median(map(statistics.median, slower)) / statistics.median(map(statistics.median, same)) - 1
        yield f"Made {share:.0%} slower, by the medians of all processes {change:+.2%}:"
        for size in sorted({1, side, len(same)}):
            chosen = itertools.combinations(runs, size)
            pairs = [([same[run] for run in some], [slower[run] for run in some]) for some in chosen]
            yield f"  {size} + {size} processes of the same rounds: {_verdicts(pairs)}."


def _verdicts(pairs: Iterable[tuple[Series, Series]]) -> str:
    counts = Counter(compare(*pair).verdict for pair in pairs)
    return f"of {counts.total()} " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def _table(workload: str, found: dict[str, list[Answer]]) -> Table:
    table = Table(title=f"Spread over runs: {WORKLOADS[workload]}", title_justify="left")
    headers = (
        "tool", "runs", "median, ms", "deviation", "largest - smallest", "measuring, s", "its interval held", "± of it",
    )  # fmt: skip
    for header in headers:
        table.add_column(header, justify="left" if header == "tool" else "right")
    for tool, answers in found.items():
        medians = [answer["median"] for answer in answers]
        middle = statistics.median(medians)
        given = [answer for answer in answers if answer.get("low") is not None]
        held = sum(answer["low"] <= middle <= answer["high"] for answer in given)
        widths = [(answer["high"] - answer["low"]) / 2 / answer["median"] for answer in given]
        deviation = statistics.stdev(medians) / middle if len(medians) > 1 else 0.0
        table.add_row(
            tool, str(len(medians)), f"{middle * 1e3:.4f}", f"{deviation:.2%}",
            f"{(max(medians) - min(medians)) / middle:.2%}",
            f"{statistics.mean(answer['measuring'] for answer in answers):.1f}",
            f"{held} of {len(given)}" if given else "gives none",
            f"{statistics.median(widths):.2%}" if widths else "–",
        )  # fmt: skip
    told = {tool: ", ".join(f"{answer['median'] * 1e3:.4g}" for answer in answers) for tool, answers in found.items()}
    table.caption = "Medians in the order they were taken, ms:\n" + "\n".join(f"{k}: {v}" for k, v in told.items())
    return table


def _has_gpu() -> bool:
    """Whether PyTorch finds a GPU; asked in another process, so that this one holds no part of it."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


# What follows runs in the processes that are measured.


def others(workload: str) -> None:
    """Prints what the other tools say of ``workload``."""
    module, x = _module(workload)
    if workload.startswith("cuda"):
        module, x = module.cuda().half(), x.cuda().half()

    def call() -> Any:
        import torch

        with torch.inference_mode():
            return module(x)

    answers: list[Answer] = []
    for name, tool in TOOLS.items():
        if name in ON_GPU and not workload.startswith("cuda"):
            continue
        try:
            answers.append(tool(call))
        except Exception as error:  # a tool that is not there, or cannot: the others can
            answers.append({"tool": name, "why": str(error)})
    sys.stdout.write("\n" + json.dumps(answers) + "\n")


def _module(workload: str) -> tuple[Any, Any]:
    """The model and its input, on the CPU, with random weights that are the same every time."""
    import torch
    import torchvision

    torch.manual_seed(0)
    torch.set_num_threads(1)
    name = "resnet18" if workload == "cpu" else "resnet50"
    batch = 32 if workload == "cuda-32" else 1
    return torchvision.models.get_model(name, weights=None).eval(), torch.randn(batch, 3, 224, 224)


cpu = functools.partial(_module, "cpu")
cuda_1 = functools.partial(_module, "cuda-1")
cuda_32 = functools.partial(_module, "cuda-32")


def do_bench(call: Callable[[], Any]) -> Answer:
    """``triton.testing.do_bench``."""
    from triton.testing import do_bench as bench

    begin = time.perf_counter()
    median = bench(call, return_mode="median") * 1e-3
    return {"tool": "triton.testing.do_bench", "median": median, "measuring": time.perf_counter() - begin}


def autorange(call: Callable[[], Any]) -> Answer:
    """``torch.utils.benchmark``: the median of ``blocked_autorange``."""
    from torch.utils.benchmark import Timer

    timer = Timer("call()", globals={"call": call}, num_threads=1)
    begin = time.perf_counter()
    median = timer.blocked_autorange().median
    return {"tool": "torch blocked_autorange", "median": median, "measuring": time.perf_counter() - begin}


def nvbench(call: Callable[[], Any]) -> Answer:
    """NVIDIA's nvbench, by its Python package: the median of the GPU times it kept, else the mean that it gives."""
    import cuda.bench as bench
    import torch
    from cuda.bench.results import BenchmarkResult

    def timed(state: Any) -> None:
        def launch(at: Any) -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(at.get_stream().addressof())):
                call()

        state.exec(launch, sync=True)  # PyTorch may synchronise, which nvbench's blocking kernel would never see end

    bench.register(timed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result.json")
        begin = time.perf_counter()
        bench.run_all_benchmarks(["spread", "--quiet", "--jsonbin", str(path)])
        spent = time.perf_counter() - begin
        (part,) = BenchmarkResult.from_json(path).values()
        (state,) = part
    median = statistics.median(state.samples) if state.samples else state.summaries["nv/cold/time/gpu/mean"].value
    return {"tool": f"nvbench ({'median' if state.samples else 'mean'})", "median": median, "measuring": spent}


TOOLS: dict[str, Callable[[Callable[[], Any]], Answer]] = {
    "torch.utils.benchmark": autorange, "triton.testing.do_bench": do_bench, "cuda-bench": nvbench,
}  # fmt: skip
ON_GPU = ("triton.testing.do_bench", "cuda-bench")

if __name__ == "__main__":
    if sys.argv[1:2] == ["--"]:
        others(*sys.argv[2:])
    else:
        main(sys.argv[1:])
