"""How right and how decisive a race is, on processes as they are: pools of them, races drawn from these, whole runs.

    python -m benchmarks.race record                      # measures benchmarks/pools/cpu.json, on a quiet machine
    python -m benchmarks.race record --device cuda --model resnet50 --precision fp16
    python -m benchmarks.race simulate [POOL ...]         # thousands of races from the pools, in seconds
    python -m benchmarks.race decide --runs 10 [--busy] [--beside CHECKOUT]

*record* measures each case in many fresh processes one after another, as the first half of a race does, and in pairs of
the same case that are alive together and take turns, as the rounds do. A pool has of each process when it was begun,
and its median: processes that are slow for as long as they live are in it, and so are minutes
in which the machine is slow for all.

*simulate* draws candidates from a pool. Alone, a candidate's process is one of the pool's, and its neighbours in time
are the other candidates', so that slow minutes fall on some of them. In a round all share what both processes of one
recorded pair had in common, round after round in order of time, and each differs by what a pair of its case differed
by, times the noise of the setting. All of it is multiplied by the candidate's true time, and a race is run on it by the
code that ``inferlens bench`` runs.

*decide* runs ``inferlens bench`` as a user does, into fresh folders, and judges each answer by a long reference: 20
processes of each case in turns, kept beside the pools. With ``--busy`` other programs take half of the cores; with
``--beside`` an older checkout takes turns with this one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from inferlens.analysis.race import Race, log_time
from inferlens.execution.cases import backends_named, expand, find, probe
from inferlens.execution.protocol import Observer, PlannedCase
from inferlens.execution.race import Entrant, FastestPolicy, RaceEngine, budget_of_rounds
from inferlens.execution.scheduler import MeasureOptions, open_scheduler
from inferlens.record.record import Record
from inferlens.spec.plan import Plan
from inferlens.stats.comparison import CPU_NOISE, GPU_NOISE, Noise
from inferlens.stats.race_rule import Entry
from inferlens.units import duration, listing, percent

POOLS = Path(__file__).parent / "pools"
SEED = 20260
THRESHOLD = 0.02
CANDIDATES = (2, 5, 20)
GAPS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1)  # by how much the next candidate is slower than the best
NOISES = (0.3, 1.0, 2.0, 4.0)  # times the pool's


class Measured(Struct, frozen=True, array_like=True):
    """One process: its median in seconds. What else older pools have of it is not used."""

    median: float


class Alone(Struct, frozen=True, array_like=True):
    """A process that nothing took turns with: when it was begun after the first, and how long it took in all."""

    begin: float
    seconds: float
    process: Measured


class Pair(Struct, frozen=True, array_like=True):
    """Two processes of one case that were alive together and took turns."""

    begin: float
    seconds: float
    processes: tuple[Measured, Measured]


class Case(Struct, frozen=True):
    """What was recorded of one case, in order of time."""

    alone: list[Alone] = []
    together: list[Pair] = []


class Pool(Struct, frozen=True):
    """A file of :data:`POOLS`."""

    model: str
    device: str
    precision: str
    created: str
    environment: dict[str, Any]
    cases: dict[str, Case]


def main(words: Sequence[str]) -> None:
    """Does what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.race")
    tasks = parser.add_subparsers(required=True)
    one = tasks.add_parser("record")
    one.add_argument("--model", default="resnet18")
    one.add_argument("--backend", default="", help="by default pytorch,onnxruntime,openvino; all that work on cuda")
    one.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    one.add_argument("--precision", default="fp32")
    one.add_argument("--processes", type=int, default=60, help="of each case, alone")
    one.add_argument("--pairs", type=int, default=40, help="of each case, in turns")
    one.add_argument("--minutes", type=float, default=60.0, help="after which no process is begun")
    one.add_argument("--to", type=Path, help="by default benchmarks/pools/DEVICE.json")
    one.set_defaults(task=record)
    two = tasks.add_parser("simulate")
    two.add_argument("pools", nargs="*", type=Path, help="by default all of benchmarks/pools")
    two.add_argument("--races", type=int, default=300, help="of each setting")
    two.add_argument("--candidates", type=int, nargs="+", default=CANDIDATES)
    two.add_argument("--gaps", type=float, nargs="+", default=GAPS)
    two.add_argument("--noise", type=float, nargs="+", default=NOISES)
    two.add_argument("--workers", type=int, help="processes at once; by default as many as there are CPUs")
    two.add_argument("--case", help="of the pool, of which all candidates are; by default each is of one of them")
    two.set_defaults(task=simulate)
    three = tasks.add_parser("decide")
    three.add_argument("--model", default="resnet18")
    three.add_argument("--words", default="", help="further words of bench, such as '--precision fp16 --batch 32'")
    three.add_argument("--runs", type=int, default=10)
    three.add_argument("--busy", action="store_true", help="while other programs take half of the cores")
    three.add_argument("--beside", type=Path, help="another checkout, whose runs take turns with these")
    three.add_argument("--reference", type=Path, help="made if it is not there")
    three.set_defaults(task=decide)
    args = parser.parse_args(words)
    args.task(args)


# record


def record(namespace: argparse.Namespace) -> None:
    """Measures a pool, and saves it after each round, so that an interrupted one is kept."""
    backend = namespace.backend or (
        "pytorch,onnxruntime,openvino" if namespace.device == "cpu" else "pytorch,torch_compile:reduce-overhead"
    )
    path = namespace.to or POOLS / f"{namespace.device}.json"
    console, deadline = Console(width=110), time.monotonic() + 60 * namespace.minutes
    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        plan = Plan.from_words({
            "model": namespace.model, "backend": backend, "device": namespace.device, "precision": namespace.precision,
            "mode": "latency", "output": folder, "quick": True,
        })  # fmt: skip
        cases = [
            planned for planned in expand(plan, find(plan.model), probe(backends_named(plan))) if not planned.refusal
        ]
        found = {case.case.backend_label: Case() for case in cases}
        shuffle, order = random.Random(SEED), list[tuple[PlannedCase, bool]]()
        for number in range(max(namespace.processes, namespace.pairs)):
            kinds = [False] * (number < namespace.processes) + [True] * (number < namespace.pairs)
            order += shuffle.sample([(case, together) for case in cases for together in kinds], len(cases) * len(kinds))
        begun = time.time()
        with open_scheduler(plan, Observer(), cases) as scheduler:
            for number, (planned, together) in enumerate(order):
                if time.monotonic() > deadline:
                    break
                begin, tick = time.time() - begun, time.perf_counter()
                if together:
                    budget = budget_of_rounds(plan.budget)
                    records = scheduler.measure_in_turns(
                        [(planned, number)] * 2, MeasureOptions(budget, only_right=True)
                    )
                else:
                    records = [scheduler.measure(planned, number)[0]]  # what the first one exported is used again
                seconds = round(time.perf_counter() - tick, 2)
                case, at = found[planned.case.backend_label], round(begin, 1)
                if len(measured := list(_measured(records))) != len(records):
                    console.print(
                        f"{planned.case.backend_label}: {records[0].status} {records[0].reason}", highlight=False
                    )
                elif together:
                    case.together.append(Pair(at, seconds, (measured[0], measured[1])))
                else:
                    case.alone.append(Alone(at, seconds, measured[0]))
                environment = msgspec.to_builtins(scheduler.environments.here)
                about = {name: value for name, value in environment.items() if name != "variables"}
                created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begun))
                pool = Pool(namespace.model, namespace.device, namespace.precision, created, about, found)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(msgspec.json.encode(pool))
                medians = ", ".join(duration(one.median) for one in measured)
                console.print(f"{number + 1} of {len(order)}: {planned.case.backend_label} {medians}", highlight=False)
    console.print(f"Wrote {path}, {path.stat().st_size / 1e3:.0f} kB.")
    console.print(spreads(path))


def _measured(records: Sequence[Record]) -> Iterator[Measured]:
    """Yield what each process measured, as a race takes it; nothing of one that failed."""
    for log in (log_time(record, "latency") for record in records if record.status == "ok"):
        if log is not None:
            yield Measured(float(f"{math.exp(log):.6g}"))


def read(path: Path) -> Pool:
    """A pool."""
    return msgspec.json.decode(path.read_bytes(), type=Pool)


def spreads(path: Path) -> Table:
    """How far processes of a pool differ, alone and in turns."""
    pool = read(path)
    table = Table(title=f"{path.name}: {pool.model} {pool.precision} on {pool.device}", title_justify="left")
    for title in ("case", "processes", "median", "differ by", "5 % are off by", "pairs", "in turns", "seconds"):
        table.add_column(title, justify="left" if title == "case" else "right")
    for name, case in pool.cases.items():
        logs = [math.log(one.process.median) for one in case.alone]
        apart = [
            math.log(one.median / measured.median) / math.sqrt(2)
            for one, measured in (pair.processes for pair in case.together)
        ]
        if len(logs) > 1 and len(apart) > 1:
            middle = statistics.median(logs)
            off = sorted(abs(log - middle) for log in logs)[math.ceil(0.95 * len(logs)) - 1]
            table.add_row(
                name, str(len(logs)), duration(math.exp(middle)), percent(round(statistics.stdev(logs), 3)),
                percent(round(math.expm1(off), 3)), str(len(apart)),
                percent(round(math.sqrt(statistics.fmean(item**2 for item in apart)), 3)),
                f"{statistics.fmean(one.seconds for one in case.alone):.1f}",
            )  # fmt: skip
    return table


# simulate


@dataclass(frozen=True)
class Source:
    """Processes of a case: logarithms of their times over the case's mean."""

    alone: Sequence[float]  # in order of time
    common: Sequence[float]  # of the pairs, in order of time
    own: Sequence[float]  # by how much a process of a pair differs from what the pair has in common

    @classmethod
    def of(cls, case: Case) -> Source:
        """Return the source of a recorded case."""
        alone = [math.log(one.process.median) for one in case.alone]
        pairs = [[math.log(process.median) for process in pair.processes] for pair in case.together]
        mean, level = statistics.fmean(alone), statistics.fmean(log for pair in pairs for log in pair)
        return cls(
            alone=[log - mean for log in alone],
            common=[statistics.fmean(pair) - level for pair in pairs],
            # The difference of two independent processes has twice the variance of each.
            own=[(one - item) / math.sqrt(2) for one, item in pairs],
        )


class Field:
    """Candidates with their true times, and the processes that are drawn of them.

    ``noise`` multiplies how far the processes of a round differ from each other.
    """

    def __init__(
        self, sources: Sequence[Source], times: Sequence[float], draw: random.Random, noise: float = 1.0
    ) -> None:
        self.names = [f"way {place}" for place in range(len(times))]
        self.logs = dict(zip(self.names, map(math.log, times), strict=True))
        self._source = {name: draw.choice(sources) for name in self.names}
        self._draw, self._noise = draw, noise
        begin = draw.random()  # at which share of the pool's time it begins
        self._place = {id(source): int(begin * len(source.alone)) for source in sources}
        self._common = draw.choice(sources).common
        self._round = int(begin * len(self._common))

    def alone(self, names: Sequence[str]) -> dict[str, float]:
        """Return the logarithm of a process of each by itself, one after the other."""
        logs = {}
        for name in names:
            source = self._source[name]
            logs[name] = self.logs[name] + source.alone[self._place[id(source)] % len(source.alone)]
            self._place[id(source)] += 1
        return logs

    def together(self, names: Sequence[str]) -> dict[str, float]:
        """Return the logarithm of a process of each in a round."""
        common = self._common[self._round % len(self._common)]
        self._round += 1
        logs = {}
        for name in names:
            own = self._noise * self._draw.choice(self._source[name].own)
            logs[name] = self.logs[name] + common + self._draw.choice((-1, 1)) * own
        return logs


class SilentPolicy(FastestPolicy):
    """The policy of ``inferlens bench``, which reports nothing."""

    def report(self, engine: RaceEngine, number: int, cases: Sequence[Any]) -> None:
        """See :class:`RacePolicy`."""


class SimulatedRounds(RaceEngine):
    """A race whose processes are drawn; who meets, and when it is over, is the library's."""

    def __init__(self, field: Field, usual: Noise) -> None:
        super().__init__(None, (), math.inf, SilentPolicy())  # type: ignore[arg-type]
        self.field, self.usual = field, usual
        self.logs: dict[str, dict[Hashable, float]] = {name: {} for name in field.names}
        self._race: Race | None = None
        self.before: dict[str, list[float]] = {name: [] for name in field.names}
        if usual is CPU_NOISE:  # a race on the CPU begins with a round of all
            self.hold({1: list(self.ranked.values())})
        else:
            self.before = {name: [log] for name, log in field.alone(field.names).items()}

    @property
    def race(self) -> Race:
        """How it stands."""
        if self._race is None:
            entries = {
                name: Entry(rounds=logs, separate=self.before[name], usual=self.usual)
                for name, logs in self.logs.items()
            }
            self._race = Race(entries=entries, ranked=frozenset(entries), threshold=THRESHOLD)
        return self._race

    @property
    def ranked(self) -> dict[str, Entrant]:
        """All candidates: no process fails."""
        entrants: dict[str, Any] = {
            name: SimpleNamespace(name=name, planned=SimpleNamespace(case=None), records=["alone"])
            for name in self.logs
        }
        return entrants

    def references(self) -> list[str]:
        """Return what others are compared with."""
        return self.field.names[-1:]

    def concurrency(self, entrants: Sequence[Any]) -> int:  # noqa: ARG002
        """See :class:`RaceEngine`."""
        return 1

    def hold(self, rounds: Mapping[int, Sequence[Any]]) -> None:
        """Draw the processes of a round."""
        ((number, meeting),) = rounds.items()
        self.rounds, self._race = number, None
        for name, log in self.field.together([entrant.name for entrant in meeting]).items():
            self.logs[name][number] = log


@dataclass(frozen=True)
class Outcome:
    """How a race ended; ``loss`` is by what share the named candidate is slower than the best."""

    decided: bool
    loss: float
    rounds: int

    @property
    def wrong(self) -> bool:
        """Whether a race was decided for a candidate that is slower by more than the threshold."""
        return self.decided and self.loss > THRESHOLD + 1e-9


def simulate_race(
    sources: Sequence[Source], usual: Noise, gap: float, candidates: int, noise: float, seed: int
) -> Outcome:
    """Run a race in which the best two differ by ``gap``; the others are slower than the best by 10 to 100 %."""
    draw = random.Random(f"{gap} {candidates} {seed}")
    slower = [1.1 * (2 / 1.1) ** draw.random() for _ in range(candidates - 2)]
    field = Field(sources, draw.sample([1.0, 1 + gap, *slower], candidates), draw, noise)
    rounds = SimulatedRounds(field, usual)
    answer = rounds.run().answer
    loss = math.expm1(field.logs[answer.best] - min(field.logs.values()))
    return Outcome(answer.kind == "fastest", loss, rounds.rounds)


def simulate(namespace: argparse.Namespace) -> None:
    """Run the races and print one table."""
    console = Console(width=120)
    table = Table(title=f"{namespace.races:,} races each, threshold {percent(THRESHOLD)}", title_justify="left")
    for title in ("pool", "noise", "ways", "gap", "decided", "named one loses more", "mean rounds"):
        table.add_column(title, justify="left" if title == "pool" else "right")
    paths = namespace.pools or [
        path for path in sorted(POOLS.glob("*.json")) if "cases" in json.loads(path.read_bytes())
    ]
    if not paths:
        sys.exit("There is no pool: python -m benchmarks.race record")
    begin = time.perf_counter()
    with ProcessPoolExecutor(namespace.workers) as workers:
        for path in paths:
            console.print(spreads(path))
            pool = read(path)
            usual = CPU_NOISE if pool.device == "cpu" else GPU_NOISE
            cases = [case for name, case in pool.cases.items() if namespace.case in (None, name)]
            sources = [Source.of(case) for case in cases if len(case.alone) > 1 and len(case.together) > 1]
            for noise, candidates, gap in itertools.product(namespace.noise, namespace.candidates, namespace.gaps):
                play = partial(simulate_race, sources, usual, gap, candidates, noise)
                outcomes = list(workers.map(play, range(namespace.races), chunksize=max(1, namespace.races // 16)))
                table.add_row(path.stem, f"{noise:g}", str(candidates), percent(gap), *row(outcomes))
    table.caption = f"Simulated in {duration(time.perf_counter() - begin)}."
    console.print(table)


def row(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the last cells of a row."""
    decided, wrong = (
        percent(round(sum(getattr(outcome, name) for outcome in outcomes) / len(outcomes), 3))
        for name in ("decided", "wrong")
    )
    return [decided, wrong, f"{statistics.fmean(outcome.rounds for outcome in outcomes):.1f}"]


# decide


@dataclass(frozen=True)
class Answered:
    """What a run said; ``sure`` is not the likeliest of several, nor the fastest of what was measured once."""

    fastest: list[str]
    sure: bool
    medians: dict[str, float]
    processes: int
    seconds: float


def decide(namespace: argparse.Namespace) -> None:
    """Runs ``inferlens bench`` again and again, and judges its answers by a long reference."""
    console = Console(width=140)
    here = Path(__file__).parent.parent
    words = [namespace.model, *namespace.words.split()]
    namespace.reference = namespace.reference or POOLS / ("reference-busy.json" if namespace.busy else "reference.json")
    if namespace.reference.exists():
        reference = json.loads(namespace.reference.read_bytes())
        if reference["words"] != words:
            sys.exit(f"{namespace.reference} is of {' '.join(reference['words'])}: name another one with --reference")
    else:
        console.print("A reference first: 20 processes of each, in turns.")
        with others(namespace.busy):
            answered = bench(here, [*words, "--repeats", "20", "--mode", "latency"])
        reference = {
            "words": words,
            "fastest": answered.fastest,
            "medians": answered.medians,
            "seconds": answered.seconds,
        }
        namespace.reference.parent.mkdir(parents=True, exist_ok=True)
        namespace.reference.write_text(json.dumps(reference, indent=1) + "\n", encoding="utf-8")
    busy = " while other programs took half of the cores" if namespace.busy else ""
    told = (
        f"{namespace.runs} runs of inferlens bench {' '.join(words)}{busy}; reference: {told_of(reference['fastest'])}"
    )
    table = Table(title=told, title_justify="left")
    for title in ("run", "of", "fastest", "median", "next", "processes", "time", ""):
        table.add_column(title, justify="left" if title in ("of", "fastest", "next", "") else "right")
    counts: dict[str, list[tuple[str, float]]] = {}
    with others(namespace.busy):
        for number in range(namespace.runs):
            for name, checkout in [("this", here), *([("beside", namespace.beside)] if namespace.beside else [])]:
                answered = bench(checkout, words)
                verdict = compared(answered.fastest, reference["fastest"]) + ", not sure" * (not answered.sure)
                counts.setdefault(name, []).append((verdict, answered.seconds))
                order = sorted(answered.medians, key=answered.medians.__getitem__)
                rest = [item for item in order if item not in answered.fastest]
                table.add_row(
                    str(number + 1), name, told_of(answered.fastest),
                    duration(answered.medians[order[0]]) if order else "–",
                    f"{rest[0]} {duration(answered.medians[rest[0]])}" if rest else "–", str(answered.processes),
                    duration(answered.seconds), verdict,
                )  # fmt: skip
                console.print(
                    f"{number + 1} {name}: {told_of(answered.fastest)}, {duration(answered.seconds)}", highlight=False
                )
    console.print(table)
    for name, item in counts.items():
        verdicts = Counter(verdict for verdict, _ in item)
        answered = listing([f"{count} {verdict}" for verdict, count in verdicts.most_common()])
        console.print(
            f"{name}: {answered}; {duration(statistics.median(seconds for _, seconds in item))} each.", highlight=False
        )


def told_of(fastest: Sequence[str]) -> str:
    """The winner, or those that are equally fast."""
    return f"{listing(sorted(fastest))}{' are equally fast' * (len(fastest) > 1)}" if fastest else "none"


def compared(said: Sequence[str], true: Sequence[str]) -> str:
    """An answer beside that of the reference."""
    if {*said} == {*true}:
        return "as the reference"
    return "one of the reference's" if said and {*said} <= {*true} else "undecided" if {*said} & {*true} else "WRONG"


def bench(checkout: Path, words: Sequence[str]) -> Answered:
    """A run into a fresh folder, by the code of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        python = [sys.executable, "-m", "inferlens"]
        tick = time.perf_counter()
        command = [*python, "bench", *words, "--output", folder]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=checkout, check=False)
        seconds = time.perf_counter() - tick
        if done.returncode:
            sys.exit(f"inferlens bench ended with {done.returncode}: {done.stderr[-2000:]}")
        shown = [*python, "show", folder, "--json"]
        told = subprocess.run(shown, capture_output=True, text=True, env=environment, cwd=checkout, check=True)
        rows = [item for item in json.loads(told.stdout)["rows"] if item["ranked"] and item["median"]]
        processes = len(list(Path(folder).rglob("record.json*")))
    medians = {row["name"]: row["median"] for row in rows}
    fastest = [row for row in rows if row["fastest"]]
    sure = all(item.get("standing") not in ("likeliest", "once") for item in fastest)
    return Answered([item["name"] for item in fastest], sure, medians, processes, seconds)


@contextmanager
def others(busy: bool) -> Iterator[None]:
    """Other programs that take half of the cores, if asked for."""
    count = max(1, len(os.sched_getaffinity(0)) // 2) if busy else 0
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
