"""How far a tool's answer differs from run to run: the same call, timed in many fresh processes, tool after tool.

A tool's answer is the median that it gives with its defaults; each run is a process of its own, and the tools take
turns. Shown are the relative standard deviation of a tool's answers and the distance of its largest from its smallest,
what a run takes, and, where a tool gives an interval, how often that held the median of all its answers. Ours of a
single process covers the noise within it alone, and says so.

The tools do not time the same thing. On the GPU ours and nvbench give the time of a call that is alone on its stream,
``triton.testing.do_bench`` that of calls which queue up behind a cleared L2 cache, torch.utils.benchmark the seconds of
many calls in a row over their number. Spreads can be compared, medians cannot.

    python -m benchmarks.spread [--runs 10] [--workload cpu cuda-1 cuda-32]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

WORKLOADS = {
    "cpu": "resnet18 fp32 batch 1, CPU, one thread",
    "cuda-1": "resnet50 fp16 batch 1, CUDA",
    "cuda-32": "resnet50 fp16 batch 32, CUDA",
}
Answer = dict[str, Any]  # tool, median and perhaps low and high in seconds, seconds of measuring


def main(words: Sequence[str] = ()) -> None:
    """Prints a table for each workload."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spread")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--workload", nargs="*", choices=WORKLOADS, default=list(WORKLOADS))
    asked = parser.parse_args(words)
    console = Console(width=140)
    gpu = _has_gpu()
    for workload in asked.workload:
        if workload.startswith("cuda") and not gpu:
            console.print(f"spread: no NVIDIA GPU with PyTorch here, so nothing of {WORKLOADS[workload]}.")
            continue
        found, notes = in_turns(workload, asked.runs)
        console.print(_table(workload, found))
        for note in notes:
            console.print(note, highlight=False)


def in_turns(workload: str, runs: int) -> tuple[dict[str, list[Answer]], list[str]]:
    """Every tool's answers, and what is to be said of tools that gave none."""
    found: dict[str, list[Answer]] = {}
    notes: dict[str, str] = {}
    for _ in range(runs):
        for tool in TOOLS:
            if tool in notes or (tool in ON_GPU and not workload.startswith("cuda")):
                continue
            begin = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.spread", "--", tool, workload]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            whole = time.perf_counter() - begin
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
                notes[tool] = f"{tool}: no answer: {last}"
                continue
            for answer in json.loads(done.stdout.splitlines()[-1]):
                found.setdefault(answer["tool"], []).append({**answer, "whole": whole})
    return found, list(notes.values())


def _table(workload: str, found: dict[str, list[Answer]]) -> Table:
    table = Table(title=f"Spread over runs: {WORKLOADS[workload]}", title_justify="left")
    headers = (
        "tool", "runs", "median, ms", "deviation", "largest - smallest", "measuring, s", "run, s", "its interval held",
        "± of it",
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
            *(f"{statistics.mean(answer[name] for answer in answers):.1f}" for name in ("measuring", "whole")),
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


# What follows runs in a process of its own.


def answer(tool: str, workload: str) -> None:
    """Prints what ``tool`` says of ``workload``."""
    sys.stdout.write("\n" + json.dumps(list(TOOLS[tool](workload))) + "\n")


def _module(workload: str) -> tuple[Any, Any]:
    """The model and its input, on the CPU, with random weights that are the same every time."""
    import torch
    import torchvision

    torch.manual_seed(0)
    torch.set_num_threads(1)
    name = "resnet18" if workload == "cpu" else "resnet50"
    batch = 32 if workload == "cuda-32" else 1
    return torchvision.models.get_model(name, weights=None).eval(), torch.randn(batch, 3, 224, 224)


def _call(workload: str) -> Callable[[], Any]:
    """The call to time."""
    import torch

    module, x = _module(workload)
    if workload.startswith("cuda"):
        module, x = module.cuda().half(), x.cuda().half()

    def call() -> Any:
        with torch.inference_mode():
            return module(x)

    return call


def ours(workload: str) -> Iterator[Answer]:
    """Inferlens with its default budget: latency, and on CUDA the GPU time of the same calls."""
    import inferlens
    from inferlens import samples
    from inferlens.stats.intervals import median_interval

    gpu = workload.startswith("cuda")
    module, x = _module(workload)
    words: dict[str, Any] = {"device": "cuda", "precision": "fp16"} if gpu else {"device": "cpu", "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        (record,) = inferlens.bench(module, x, backend="pytorch", output=folder, **words)
    if record.status != "ok":
        raise RuntimeError(record.reason)
    spent = sum(phase.seconds for phase in record.phases if phase.name in ("warm-up", "steady state"))
    for metric in ("latency", "GPU time") if gpu else ("latency",):
        kept = samples.of(record, metric).samples  # type: ignore[arg-type]
        interval = median_interval(kept)
        yield {
            "tool": f"inferlens, {metric}", "median": statistics.median(kept), "measuring": spent,
            "low": interval.low if interval else None, "high": interval.high if interval else None,
        }  # fmt: skip


def do_bench(workload: str) -> Iterator[Answer]:
    """``triton.testing.do_bench``."""
    from triton.testing import do_bench as bench

    call = _call(workload)
    begin = time.perf_counter()
    median = bench(call, return_mode="median") * 1e-3
    yield {"tool": "triton.testing.do_bench", "median": median, "measuring": time.perf_counter() - begin}


def autorange(workload: str) -> Iterator[Answer]:
    """``torch.utils.benchmark``: the median of ``blocked_autorange``."""
    from torch.utils.benchmark import Timer

    timer = Timer("call()", globals={"call": _call(workload)}, num_threads=1)
    begin = time.perf_counter()
    median = timer.blocked_autorange().median
    yield {"tool": "torch blocked_autorange", "median": median, "measuring": time.perf_counter() - begin}


def nvbench(workload: str) -> Iterator[Answer]:
    """NVIDIA's nvbench, by its Python package: the median of the GPU times it kept, else the mean that it gives."""
    import cuda.bench as bench
    import torch
    from cuda.bench.results import BenchmarkResult

    call = _call(workload)

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
    yield {"tool": f"nvbench ({'median' if state.samples else 'mean'})", "median": median, "measuring": spent}


TOOLS: dict[str, Callable[[str], Iterator[Answer]]] = {
    "inferlens": ours, "torch.utils.benchmark": autorange, "triton.testing.do_bench": do_bench, "cuda-bench": nvbench,
}  # fmt: skip
ON_GPU = ("triton.testing.do_bench", "cuda-bench")

if __name__ == "__main__":
    if sys.argv[1:2] == ["--"]:
        answer(*sys.argv[2:])
    else:
        main(sys.argv[1:])
