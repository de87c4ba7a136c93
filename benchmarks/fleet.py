"""How long `show -o DIR`, `show` and `show --by machine` take of many records of many machines, and how much memory.

``python -m benchmarks.fleet [RECORDS ...]``, by default 1,250 to 10,000: whether time grows with their number and no
faster, and memory hardly. The records are made up: 250 of each machine, of 5 models, 10 ways and 5 rounds, so 5,000 are
those of 20 machines. A record has as many samples as the median one of examples/. Each command is a process of its own,
of which both the time that passes and the time of the processor are told.

Measured so on two threads of an AMD EPYC, Python 3.11: seconds of the processor (other work ran beside it), and peak of
memory. ``show -o DIR`` holds one record at a time; ``show`` all of them without samples, and the samples of those that
were asked for last.

    records  on disk     show -o DIR            show  show --by machine
      1,250   93 MiB   1.1 s  37 MiB   4.2 s 113 MiB      4.4 s 113 MiB
      2,500  186 MiB   2.2 s  38 MiB   8.1 s 118 MiB      7.5 s 119 MiB
      5,000  371 MiB   4.4 s  41 MiB  15.6 s 129 MiB     15.1 s 130 MiB
     10,000  742 MiB   7.9 s  46 MiB  29.8 s 152 MiB     30.8 s 152 MiB
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from inferlens.record.record import (
    Agreement,
    Environment,
    Gpu,
    Measurement,
    ModelFacts,
    Phase,
    Record,
    encode,
)
from inferlens.record.store import Store
from inferlens.spec.case import Budget, Case, TensorSpec

MODELS, WAYS, ROUNDS = 5, 10, 5
SAMPLES = 1000  # of latency, with their begins, and of GPU time: 3,000 numbers, as the median record of examples/ has
CARDS = ("NVIDIA H200", "NVIDIA L4", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090")
BACKENDS = (
    ("pytorch", ""),
    ("torchscript", "trace"),
    ("torch_compile", "default"),
    ("onnxruntime", "cuda"),
    ("tensorrt", "trt"),
)
RIGHT = Agreement(reference="pytorch fp32", rel_l2=3e-7, tolerance=1e-4, agrees=True)


def machine(number: int) -> Environment:
    """A made-up machine; some have a card of the same kind."""
    gpu = Gpu(name=CARDS[number % len(CARDS)], uuid=f"GPU-{number:08d}-0000-0000-0000-000000000000")
    return Environment(cpu="AMD EPYC 9654", cpu_threads=32, gpus=(gpu,), driver="580.95.05")


def records(number: int) -> Iterator[Record]:
    """The records of one machine."""
    draw = np.random.default_rng(number)
    for model in range(MODELS):
        for way in range(WAYS):
            backend, variant = BACKENDS[way % len(BACKENDS)]
            precision = "fp16" if way >= len(BACKENDS) else "fp32"
            fields = {"backend": backend, "variant": variant, "precision": precision, "device": "cuda", "batch": 1}
            case = Case(model=f"torchvision:model{model}", **fields)
            for index in range(ROUNDS):
                centre = 1e-3 * (model + 1) * (1 + number % 7) * (1 + 0.1 * ((way * 7) % WAYS)) * draw.normal(1, 0.002)
                yield record(case, machine(number), centre, draw, f"{number}-{model}-{way}-{index}", index)


def record(case: Case, where: Environment, centre: float, draw: np.random.Generator, name: str, repeat: int) -> Record:
    """A record of a case that is about so fast."""
    latency, gpu = (tuple((centre * (1 + 0.01 * draw.gamma(2.0, 1.0, SAMPLES))).tolist()) for _ in range(2))
    begins = tuple(np.cumsum(latency).tolist())
    inputs = (TensorSpec("input", (1, 3, 224, 224)),)
    return Record(
        id=name, run=name.partition("-")[0], created=f"2026-05-04T10:{repeat:02}:00.000+00:00", case=case,
        budget=Budget(), status="ok", model=ModelFacts(name=case.model, inputs=inputs), environment=where,
        phases=(Phase("load", 0.4), Phase("build", 3.1), Phase("first inference", 0.1)), agreement=RIGHT, repeat=repeat,
        measurements=(
            Measurement(metric="latency", unit="s", clock="a clock", samples=latency, begins=begins),
            Measurement(metric="GPU time", unit="s", clock="CUDA events", samples=gpu),
        ),
    )  # fmt: skip


def make(root: Path, count: int) -> list[Path]:
    """A folder of each machine, with so many records in all."""
    folders = []
    for number in range(count // (MODELS * WAYS * ROUNDS)):
        folders.append(root / f"machine{number}")
        store = Store(folders[-1])
        for record in records(number):
            (store.claim(record.case, record.model.name) / "record.json").write_bytes(encode(record))
    return folders


def timed(*arguments: str | Path) -> tuple[float, float, float, str]:
    """Seconds that passed and of the processor, the peak of memory in MiB, and what the command printed."""
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "inferlens", *map(str, arguments)], stdout=subprocess.PIPE)
    printed = process.stdout.read() if process.stdout else b""
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"inferlens {' '.join(map(str, arguments[:2]))} failed")
    seconds = time.perf_counter() - begun
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, printed.decode()


def main(counts: list[int]) -> None:
    """The table, a line for each number of records."""
    print(f"{'records':>8} {'on disk':>10} {'show -o DIR':>27} {'show':>27} {'show --by machine':>27}")
    for count in counts:
        with tempfile.TemporaryDirectory() as root:
            folders, out = make(Path(root), count), Path(root, "merged")
            size = sum(file.stat().st_size for folder in folders for file in folder.rglob("record.json")) / 2**20
            done = [timed("show", *folders, "-o", out), timed("show", out), timed("show", out, "--by", "machine")]
            cells = " ".join(f"{seconds:7.1f} s {cpu:6.1f} s {memory:5.0f} MiB" for seconds, cpu, memory, _ in done)
            print(f"{count:>8,} {size:>6.0f} MiB {cells}")
    print(done[2][3])


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [1250, 2500, 5000, 10_000])
