"""How long ``inferlens bench`` takes to decide four races on a GPU, how much of it to build, and what it answers.

    python -m benchmarks.gpu_races [--model resnet50,vit_b_16] [--batch 1,32] [-o FOLDER]

The records of the races are left in the folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.side_by_side import run_side_by_side
from inferlens.analysis.race import race
from inferlens.analysis.samples import latest
from inferlens.record.record import IN_TURNS, Record
from inferlens.record.store import load_records


def seconds_of(record: Record, *phases: str) -> float:
    return sum(phase.seconds for phase in record.phases if phase.name in phases)


def building(records: Sequence[Record]) -> float:
    """Seconds in which nothing but building went on: a screen builds one after the other, rounds side by side."""
    found, longest, end = 0.0, 0.0, ""
    for record in sorted(records, key=lambda record: record.created):
        if IN_TURNS not in record.facts:
            found += seconds_of(record, "build")
            continue
        if record.created > end:
            found, longest = found + longest, 0.0
        longest, end = max(longest, seconds_of(record, "export", "build")), max(end, record.ended or record.created)
    return found + longest


def answer(model: str, batch: str, folder: Path) -> str:
    """What the records of a race say."""
    records = [record for record in load_records(folder / model / model).records if record.case.batch == int(batch)]
    found = race({runs.first.id: runs for runs in latest(records)})
    case = found.entries and next(record.case for record in records if record.id == found.answer.best)
    what = f"{found.answer.kind} {case.backend_label if case else 'nothing'}, {found.answer.rounds} rounds"
    return f"of which {building(records):.0f} s to build: {what}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50,vit_b_16")
    parser.add_argument("--batch", default="1,32")
    parser.add_argument("--backend", default="pytorch,torch_compile:reduce-overhead,torch_tensorrt:dynamo,tensorrt:rtx")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-o", "--output", type=Path, default=Path("results/gpu_races"))
    words = parser.parse_args()
    races = [(model, batch) for model in words.model.split(",") for batch in words.batch.split(",")]
    asked = [f"--{name}={getattr(words, name)}" for name in ("backend", "precision", "device")]
    for model, batch in races:
        command = ["bench", model, "--batch", batch, *asked, "--output", str(words.output / model)]
        seconds = run_side_by_side([command], words.output / f"{model}-{batch}")
        print(f"{model}, batch {batch}: {seconds:.0f} s, {answer(model, batch, words.output)}", flush=True)


if __name__ == "__main__":
    main()
