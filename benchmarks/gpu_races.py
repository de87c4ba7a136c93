"""How long ``inferlens bench`` takes to decide four races on a GPU, everything built before, and what it answers.

    python -m benchmarks.gpu_races [--model resnet50,vit_b_16] [--batch 1,32] [-o FOLDER]

Everything is built first, side by side, into the cache that the races then find it in. The records of the races are
left in the folder.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from inferlens.analysis.race import race
from inferlens.analysis.runs import latest
from inferlens.record.store import load_records

BUILD = ("--quick", "--iterations", "5", "--warmup", "2")


def bench(model: str, batch: str, words: argparse.Namespace, backend: str, *more: str) -> subprocess.Popen[str]:
    """The command, its screen in a file of the folder."""
    folder, asked = words.output, [f"--{name}={getattr(words, name)}" for name in ("precision", "device")]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{model}-{batch}{f'-{backend}' if more else ''}.txt".replace(":", "-")).open("w") as screen:
        given = ["bench", model, "--batch", batch, "-b", backend, *asked, "--output", str(folder / model), *more]
        command = [sys.executable, "-m", "inferlens", *given]
        return subprocess.Popen(command, text=True, stdout=screen, stderr=subprocess.STDOUT)


def answer(model: str, batch: str, folder: Path) -> str:
    """What the records of a race say."""
    records = [each for each in load_records(folder / model / model).records if each.case.batch == int(batch)]
    found = race({runs.first.id: runs for runs in latest(records)})
    case = found.entries and next(each.case for each in records if each.id == found.answer.best)
    return f"{found.answer.kind} {case.backend_label if case else 'nothing'}, {found.answer.rounds} rounds"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50,vit_b_16")
    parser.add_argument("--batch", default="1,32")
    parser.add_argument("--backend", default="pytorch,torch_compile:reduce-overhead,torch_tensorrt:dynamo,tensorrt:rtx")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-o", "--output", type=Path, default=Path("results/gpu_races"))
    words = parser.parse_args()
    models = words.model.split(",")
    races = [(model, batch) for model in models for batch in words.batch.split(",")]
    begin = time.monotonic()
    for building in [bench(*each, words, backend, *BUILD) for each in races for backend in words.backend.split(",")]:
        building.wait()
    for model in models:
        shutil.rmtree(words.output / model / model, ignore_errors=True)
    print(f"built in {time.monotonic() - begin:.0f} s", flush=True)
    for model, batch in races:
        begin = time.monotonic()
        code = bench(model, batch, words, words.backend).wait()
        seconds = time.monotonic() - begin
        print(f"{model}, batch {batch}: {seconds:.0f} s, exit {code}: {answer(model, batch, words.output)}", flush=True)


if __name__ == "__main__":
    main()
