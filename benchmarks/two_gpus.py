"""Whether all GPUs of a machine take less time for a plan than one of them, and measure the same.

    python -m benchmarks.two_gpus [--model M,...] [--batch 1,8,32] [--backend B,...] [-o FOLDER]

What is kept in a cache is built first. Then the plan runs on one GPU, on all, and on the last one alone, which says
how far medians are apart anyway. One GPU has the CPU cores that it has beside the others.
``medians.json`` has them, in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path

from scipy.stats import bootstrap

from benchmarks.side_by_side import BUILD, run_side_by_side
from inferlens.execution.remote import core_shares, gpu_cards
from inferlens.record.record import Record
from inferlens.record.store import load_records
from inferlens.stats.samples import median

BACKENDS = "pytorch,torchscript:trace,torch_compile:reduce-overhead,torch_tensorrt:dynamo,tensorrt:rtx"
CACHED = ("torch_compile", "tensorrt")
NEAR = 0.03


def medians(records: list[Record]) -> dict[str, float]:
    """The median latency of each case that ran, by model and case."""
    found = {}
    for record in records:
        samples = next(
            (measurement.values for measurement in record.measurements if measurement.metric == "latency"), ()
        )
        if record.ranked and samples:
            found[f"{record.case.model} {record.case.label}"] = median(samples)
    return found


def tell_apart(what: str, these: dict[str, float], those: dict[str, float]) -> None:
    """Says how far medians are from each other."""
    apart = sorted((these[name] / those[name] - 1, name) for name in these.keys() & those.keys())
    shifts = [item for item, _ in apart]
    near = sum(abs(shift) <= NEAR for shift in shifts)
    low, high = bootstrap((shifts,), statistics.median, method="percentile").confidence_interval
    shift = f"shifted by {statistics.median(shifts):+.1%} in the median, {low:+.1%} to {high:+.1%}"
    print(f"{what}: {shift}; {near} of {len(apart)} within {NEAR:.0%}")
    for item, name in (*apart[:3], *apart[-3:]):
        print(f"  {item:+.1%} {name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50,vit_b_16,resnet18")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--backend", default=BACKENDS)
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("-o", "--output", type=Path, default=Path("results/two_gpus"))
    words = parser.parse_args()
    models, folder = words.model.split(","), words.output
    case = ["--precision", words.precision, "--device", "cuda"]
    took = run_side_by_side(
        (
            ["bench", model, "--batch", batch, "-b", backend, *case, *BUILD, "--output", str(folder / "built")]
            for model in models
            for batch in words.batch.split(",")
            for backend in words.backend.split(",")
            if backend.startswith(CACHED)
        ),
        folder / "screens-built",
    )
    print(f"built in {took:.0f} s", flush=True)
    plan = ["bench", *models, "--batch", words.batch, "-b", words.backend, *case, "--quick", "--mode", "latency"]
    seconds, found = [], []
    every = os.sched_getaffinity(0)
    own = core_shares(gpu_cards(), sorted(every))
    for number, devices in enumerate(("cuda:0", "all", f"cuda:{len(own) - 1}")):
        kept = folder / f"run-{number}"  # without what another one measured, by which the time is estimated
        os.sched_setaffinity(0, every if devices == "all" else own[int(devices.removeprefix("cuda:"))])
        command = [*plan, "--devices", devices, "--output", str(kept)]
        seconds.append(run_side_by_side([command], folder / f"screens-{number}"))
        found.append(medians(load_records(kept).records))
        print(f"{devices}: {seconds[-1]:.0f} s, {len(found[-1])} cases", flush=True)
        (folder / "medians.json").write_text(json.dumps(found, indent=1))
        if number == 1:
            print(f"all take {seconds[1] / seconds[0]:.0%} of the time of one", flush=True)
            tell_apart("all against the first", found[1], found[0])
    tell_apart("all against the last", found[1], found[2])
    tell_apart("the last against the first", found[2], found[0])


if __name__ == "__main__":
    main()
