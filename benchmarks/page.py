"""What a page of many records costs: ``python -m benchmarks page``.

Records of invented latencies are written into folders as a run writes them; ``inferlens report`` draws them in a
process of its own. Time and memory have to grow as the records do; the limit is for 1,000 records of 1,000 samples.

Then one model of 5,000 cases, in Chromium and in Firefox where they and Playwright are there: until it is drawn, until
it is sorted, until it is filtered.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from inferlens.record.record import Agreement, Environment, Measurement, Memory, ModelFacts, Phase, Record, encode
from inferlens.spec.case import Budget, Case, TensorSpec

SECONDS, BYTES, CASES = 10.0, 1e9, 5000  # limits for 1,000 records of 1,000 samples; cases in a browser
WAYS, BATCHES = 10, 10
_MACHINE = Environment(cpu="Invented", cpu_cores=8, cpu_threads=16, system="Linux", python="CPython 3.11")
_RIGHT = Agreement(reference="pytorch fp32", rel_l2=3e-7, tolerance=1e-4, agrees=True)


def main() -> None:
    """Prints what pages of 250, 500 and 1,000 records take, and what browsers do with one of 5,000 cases."""
    print("\nPages: records of 1,000 samples each.\n")
    print("| records | seconds | CPU seconds | memory (MB) | page (MB) |\n|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for count in (250, 500, 1000):
            wall, spent, peak, size = _drawn(_kept(Path(folder) / str(count), _records(count, 1000)))
            print(f"| {count:,} | {wall:.1f} | {spent:.1f} | {peak / 1e6:.0f} | {size / 1e6:.2f} |", flush=True)
        print(f"\nThe last has to be below {SECONDS:.0f} seconds and {BYTES / 1e6:.0f} MB.")
        many = _kept(Path(folder) / "many", _records(CASES, 30, models=1))
        wall, spent, peak, size = _drawn(many)
        print(f"\n{CASES:,} cases of one model: {wall:.1f} s, {peak / 1e6:.0f} MB, a page of {size / 1e6:.2f} MB.")
        _browsed(many / "report.html")


def _records(count: int, samples: int, models: int | None = None) -> Iterator[Record]:
    """Ten ways at ten batch sizes of as many models as it takes, or as many ways of ``models``."""
    random = np.random.default_rng(7)
    batches = [2**power for power in range(BATCHES)]
    ways = WAYS if models is None else count // (BATCHES * models)
    for number in range(count):
        batch, way = batches[number % BATCHES], number // BATCHES % ways
        model = f"invented:model{number // (BATCHES * ways)}"
        name = ("pytorch", "onnxruntime", "openvino", "tensorrt")[way % 4]
        case = Case(model=model, backend=name, batch=batch, options={"level": way // 4} if way > 3 else {})
        latency = 1e-3 * (1 + 0.3 * way) * (1 + 0.5 * batch) * random.gamma(400.0, 1 / 400, samples)
        rate = tuple(float(item) for item in 1 / latency[:5])
        yield Record(
            id=f"{case.digest}-1",
            run="run-1",
            created="2026-05-04T10:00:00Z",
            case=case,
            budget=Budget(),
            status="ok",
            model=ModelFacts(name=model, inputs=(TensorSpec("input", (batch, 3, 224, 224)),), parameters=1),
            environment=_MACHINE,
            phases=(Phase("load", 0.4), Phase("build", 3.1), Phase("first inference", 0.08)),
            measurements=(
                Measurement(metric="latency", unit="s", clock="host", samples=tuple(float(item) for item in latency)),
                Measurement(metric="throughput", unit="calls/s", clock="host", samples=rate),
            ),
            agreement=_RIGHT,
            memory=Memory(host_peak=812 * 2**20, host_basis="ru_maxrss"),
        )


def _kept(folder: Path, records: Iterator[Record]) -> Path:
    for number, record in enumerate(records):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "record.json").write_bytes(encode(record))
    return folder


def _drawn(folder: Path) -> tuple[float, float, float, int]:
    """Seconds, CPU seconds and peak memory of the command, and the size of its page, in bytes."""
    target = folder / "report.html"
    words = [sys.executable, "-m", "inferlens", "report", str(folder), "-o", str(target)]
    began = time.perf_counter()
    process = os.posix_spawn(sys.executable, words, os.environ, file_actions=[(os.POSIX_SPAWN_CLOSE, 2)])
    _, status, used = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}")
    wall = time.perf_counter() - began
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024.0, target.stat().st_size


def _browsed(page: Path) -> None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("Not tried in a browser: there is no Playwright.")
        return
    with sync_playwright() as playwright:
        for name, launch, words in (
            ("chromium", playwright.chromium.launch, {"args": ["--no-sandbox", "--disable-gpu"]}),
            ("firefox-esr", playwright.firefox.launch, {"channel": "moz-firefox"}),
        ):
            path = shutil.which(name)
            if path:
                tab = launch(executable_path=path, **words).new_page()
                print(f"In {name}: drawn {{:.2f}} s, sorted {{:.2f}} s, filtered {{:.2f}} s.".format(*_used(tab, page)))


def _used(tab: Any, page: Path) -> tuple[float, float, float]:
    """Seconds until the page is drawn, its longest table sorted, and that filtered."""
    frame = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"

    def took(what: str) -> float:
        began = time.perf_counter()
        tab.evaluate(f"async () => {{ {what}; await {frame}; }}")
        return time.perf_counter() - began

    began = time.perf_counter()
    tab.goto(page.as_uri())
    tab.evaluate(f"async () => {{ await {frame}; }}")
    drawn = time.perf_counter() - began
    table = "[...document.querySelectorAll('#comparison table')].sort((a, b) => b.rows.length - a.rows.length)[0]"
    box = f"{table}.closest('section').querySelector('input[type=search]')"
    sort = took(f"{table}.querySelector('th.number button').click()")
    return drawn, sort, took(f"{box}.value = 'openvino'; {box}.dispatchEvent(new Event('input'))")
