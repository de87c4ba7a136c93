"""How right and how decisive a race is, on processes as they are: pools of them, races drawn from these, whole runs.

    python -m benchmarks.race record                      # measures benchmarks/pools/cpu.json, on a quiet machine
    python -m benchmarks.race record --device cuda --model resnet50 --precision fp16
    python -m benchmarks.race simulate [POOL ...]         # thousands of races from the pools, in seconds
    python -m benchmarks.race decide --runs 10 [--busy] [--beside CHECKOUT]

*record* measures each case in many fresh processes one after another, as the first half of a race does, and in pairs of
the same case that are alive together and take turns, as the rounds do. A pool has of each process when it was begun,
its median and that one's standard error: processes that are slow for as long as they live are in it, and so are minutes
in which the machine is slow for all.

*simulate* draws candidates from a pool. Alone, a candidate's process is one of the pool's, and its neighbours in time
are the other candidates', so that slow minutes fall on some of them. In a round all share what both processes of one
recorded pair had in common, round after round in order of time, and each differs by what a pair of its case differed
by. All of it is multiplied by the candidate's true time, and a race is run on it by the code that ``inferlens bench``
runs. Beside it stand as many processes of fixed repeats, those of all candidates in turns.

*decide* runs ``inferlens bench`` as a user does, into fresh folders, and judges each answer by a long reference: 20
processes of each case in turns, kept beside the pools. With ``--busy`` other programs take half of the cores; with
``--beside`` an older checkout takes turns with this one.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from inferlens.analysis.race import Race, centre_of
from inferlens.execution.expand import Planned, backends_named, expand
from inferlens.execution.protocol import Observer
from inferlens.execution.rounds import Entrant, Rounds, budget_of_rounds
from inferlens.execution.scheduler import scheduled
from inferlens.execution.survey import find, probe
from inferlens.record.record import Record
from inferlens.spec.plan import Plan
from inferlens.stats.between_process import Centre
from inferlens.stats.standing import Entry, alone_level, look_level
from inferlens.units import duration, listing, percent

POOLS = Path(__file__).parent / "pools"
SEED = 20260
THRESHOLD = 0.02
# The best candidate's advantage over the next; of several that are equally good there is none.
TRUTHS = {"two equal": 0.0, "best by 3 %": 0.03, "best by 5 %": 0.05}
CANDIDATES = (5, 20)


class Measured(Struct, frozen=True, array_like=True):
    """One process: its median in seconds, and the relative standard error of that; 0 where it is not known."""

    median: float
    error: float

    @property
    def centre(self) -> Centre:
        """As the statistics have it."""
        return Centre(math.log(self.median), self.error**2 or None)


class Alone(Struct, frozen=True, array_like=True):
    """A process that nothing took turns with: when it was begun after the first, and how long it took in all."""

    begin: float
    seconds: float
    found: Measured


class Pair(Struct, frozen=True, array_like=True):
    """Two processes of one case that were alive together and took turns."""

    begin: float
    seconds: float
    found: tuple[Measured, Measured]


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
    two.add_argument("--races", type=int, default=1000, help="of each setting")
    two.add_argument("--candidates", type=int, nargs="+", default=list(CANDIDATES))
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
    asked = parser.parse_args(words)
    asked.task(asked)


# record


def record(asked: argparse.Namespace) -> None:
    """Measures a pool, and saves it after each round, so that an interrupted one is kept."""
    backend = asked.backend or (
        "pytorch,onnxruntime,openvino" if asked.device == "cpu" else "pytorch,torch_compile:reduce-overhead"
    )
    path = asked.to or POOLS / f"{asked.device}.json"
    console, deadline = Console(width=110), time.monotonic() + 60 * asked.minutes
    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        plan = Plan.from_words({
            "model": asked.model, "backend": backend, "device": asked.device, "precision": asked.precision,
            "mode": "latency", "output": folder, "quick": True,
        })  # fmt: skip
        cases = [each for each in expand(plan, find(plan.model), probe(backends_named(plan))) if not each.refusal]
        found = {each.case.backend_label: Case() for each in cases}
        shuffle, order = random.Random(SEED), list[tuple[Planned, bool]]()
        for number in range(max(asked.processes, asked.pairs)):
            kinds = [False] * (number < asked.processes) + [True] * (number < asked.pairs)
            order += shuffle.sample([(each, together) for each in cases for together in kinds], len(cases) * len(kinds))
        begun = time.time()
        with scheduled(plan, Observer(), cases) as scheduler:
            for number, (each, together) in enumerate(order):
                if time.monotonic() > deadline:
                    break
                begin, tick = time.time() - begun, time.perf_counter()
                if together:
                    budget = budget_of_rounds(plan.budget)
                    records = scheduler.measure_interleaved([(each, number)] * 2, budget)
                else:
                    records = [scheduler.measure(each, number)[0]]  # what the first one exported is used again
                seconds = round(time.perf_counter() - tick, 2)
                mine, at = found[each.case.backend_label], round(begin, 1)
                if len(measured := list(_measured(records))) != len(records):
                    console.print(
                        f"{each.case.backend_label}: {records[0].status} {records[0].reason}", highlight=False
                    )
                elif together:
                    mine.together.append(Pair(at, seconds, (measured[0], measured[1])))
                else:
                    mine.alone.append(Alone(at, seconds, measured[0]))
                environment = msgspec.to_builtins(scheduler.environment)
                about = {name: value for name, value in environment.items() if name != "variables"}
                created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begun))
                pool = Pool(asked.model, asked.device, asked.precision, created, about, found)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(msgspec.json.encode(pool))
                medians = ", ".join(duration(one.median) for one in measured)
                console.print(f"{number + 1} of {len(order)}: {each.case.backend_label} {medians}", highlight=False)
    console.print(f"Wrote {path}, {path.stat().st_size / 1e3:.0f} kB.")
    console.print(spreads(path))


def _measured(records: Sequence[Record]) -> Iterator[Measured]:
    """What each process measured, as a race takes it; nothing of one that failed."""
    for centre in (centre_of(each, "latency") for each in records if each.status == "ok"):
        if centre:
            yield Measured(float(f"{math.exp(centre.log):.6g}"), float(f"{math.sqrt(centre.variance or 0.0):.3g}"))


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
        logs = [one.found.centre.log for one in case.alone]
        apart = [
            (one.centre.log - other.centre.log) / math.sqrt(2) for one, other in (each.found for each in case.together)
        ]
        if len(logs) > 1 and len(apart) > 1:
            middle = statistics.median(logs)
            off = sorted(abs(each - middle) for each in logs)[math.ceil(0.95 * len(logs)) - 1]
            table.add_row(
                name, str(len(logs)), duration(math.exp(middle)), percent(round(statistics.stdev(logs), 3)),
                percent(round(math.expm1(off), 3)), str(len(apart)),
                percent(round(math.sqrt(statistics.fmean(each**2 for each in apart)), 3)),
                f"{statistics.fmean(one.seconds for one in case.alone):.1f}",
            )  # fmt: skip
    return table


# simulate


@dataclass(frozen=True)
class Source:
    """Processes of a case, as multiples of its time, with their standard errors and seconds."""

    alone: Sequence[tuple[float, float, float]]  # logarithm, error, seconds
    common: Sequence[float]  # of the pairs, in order of time
    own: Sequence[tuple[float, float]]  # by what a process differs from what it has in common, and its error
    seconds: float  # of a process of a pair

    @classmethod
    def of(cls, case: Case) -> Source:
        """Of what was recorded."""
        middle = statistics.fmean(one.found.centre.log for one in case.alone)
        pairs = [[each.centre.log for each in one.found] for one in case.together]
        level = statistics.fmean(log for pair in pairs for log in pair)
        return cls(
            alone=[(one.found.centre.log - middle, one.found.error, one.seconds) for one in case.alone],
            common=[statistics.fmean(pair) - level for pair in pairs],
            # Of two independent ones the difference has twice the variance of each.
            own=[
                ((pair[0] - pair[1]) / math.sqrt(2), each.error)
                for pair, one in zip(pairs, case.together, strict=True)
                for each in one.found
            ],
            seconds=statistics.fmean(one.seconds for one in case.together) / 2,
        )


class Field:
    """Candidates with their true times, and the processes that are drawn of them."""

    def __init__(self, sources: Sequence[Source], times: Sequence[float], draw: random.Random) -> None:
        self.names = [f"way {place}" for place in range(len(times))]
        self.logs = dict(zip(self.names, map(math.log, times), strict=True))
        self._source = {name: draw.choice(sources) for name in self.names}
        self._draw = draw
        begin = draw.random()  # at which share of the pool's time it begins
        self._place = {id(source): int(begin * len(source.alone)) for source in sources}
        self._waves = draw.choice(sources).common
        self._wave = int(begin * len(self._waves))
        self.processes, self.seconds = 0, 0.0

    def alone(self, names: Sequence[str]) -> dict[str, Centre]:
        """A process of each by itself, one after the other."""
        found = {}
        for name in names:
            source = self._source[name]
            log, error, seconds = source.alone[self._place[id(source)] % len(source.alone)]
            self._place[id(source)] += 1
            found[name] = self._counted(name, log, error, seconds)
        return found

    def together(self, names: Sequence[str]) -> dict[str, Centre]:
        """A process of each in a round."""
        common = self._waves[self._wave % len(self._waves)]
        self._wave += 1
        found = {}
        for name in names:
            own, error = self._draw.choice(self._source[name].own)
            found[name] = self._counted(
                name, common + self._draw.choice((-1, 1)) * own, error, self._source[name].seconds
            )
        return found

    def _counted(self, name: str, log: float, error: float, seconds: float) -> Centre:
        self.processes += 1
        self.seconds += seconds
        return Centre(self.logs[name] + log, error**2 or None)


class Simulated(Rounds):
    """A race whose processes are drawn; who meets, and when it is over, is the library's."""

    def __init__(self, field: Field) -> None:
        plan = SimpleNamespace(rounds=0)
        super().__init__(SimpleNamespace(plan=plan, observer=Observer()), (), math.inf)  # type: ignore[arg-type]
        self.field = field
        self.entries = {name: ([centre], dict[int, Centre]()) for name, centre in field.alone(field.names).items()}
        self.held = 0

    @property
    def race(self) -> Race:
        """How it stands."""
        if "_race" not in self.__dict__:
            entries = {
                name: Entry(processes=each, rounds=rounds, alone={"run": each[0]})
                for name, (each, rounds) in self.entries.items()
            }
            self.__dict__["_race"] = race_of(entries, look_level(self.held), in_turns=True)
        found: Race = self.__dict__["_race"]
        return found

    @cached_property
    def _able(self) -> dict[str, Entrant]:  # type: ignore[override]
        made: dict[str, Any] = {
            name: SimpleNamespace(name=name, records=each, planned=SimpleNamespace(case=None))
            for name, (each, _) in self.entries.items()
        }
        return made

    def _reference(self) -> list[str]:
        return self.field.names[-1:]

    def _standing(self) -> str:
        return ""

    def _at_once(self, meeting: Sequence[Any], number: int) -> int:  # noqa: ARG002 - what the seam gives
        return 1

    def _hold(self, meeting: Sequence[Any], numbers: Sequence[int]) -> None:
        (number,) = numbers
        self.held += 1
        for name, centre in self.field.together([each.name for each in meeting]).items():
            self.entries[name][0].append(centre)
            self.entries[name][1][number] = centre
        self.__dict__.pop("_race", None)


def race_of(entries: Mapping[str, Entry], level: float, *, in_turns: bool = False) -> Race:
    """The race among entries, each looked at with ``level``."""
    return Race(
        entries=entries, ranked=frozenset(entries), level=level, alone=alone_level(), threshold=THRESHOLD, rounds=0,
        in_turns=in_turns,
    )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """How a race ended, and how fixed repeats of as many processes did."""

    answer: str  # right, likeliest, wrong, equal (that the two best are), different (of two that are equal), open
    fixed: str
    rounds: int
    processes: int
    seconds: float
    fixed_seconds: float


def raced(sources: Sequence[Source], truth: str, candidates: int, seed: int) -> Outcome:
    """A race among candidates of which the two best are apart as the truth says; the rest are slower by 10 to 100 %."""
    draw = random.Random(f"{truth} {candidates} {seed}")
    gap = TRUTHS[truth]
    slower = [1.1 * (2 / 1.1) ** draw.random() for _ in range(candidates - 2)]
    field = Field(sources, draw.sample([1.0, 1 + gap, *slower], candidates), draw)
    best = sorted(field.names, key=field.logs.__getitem__)[: 1 if gap else 2]
    run = Simulated(field)
    race = run.run()
    processes, seconds = field.processes, field.seconds
    answer = judged(race, best)
    # Repeats are in turns, round after round, each candidate by itself.
    found: dict[str, dict[int, Centre]] = {name: {} for name in field.names}
    for number in range(max(2, round(processes / candidates))):
        for name, centre in field.alone(draw.sample(field.names, candidates)).items():
            found[name][number] = centre
    entries = {name: Entry(processes=list(each.values()), rounds=each) for name, each in found.items()}
    fixed = judged(race_of(entries, 0.95), best)
    return Outcome(answer, fixed, run.held, processes, seconds, field.seconds - seconds)


def judged(race: Race, best: Sequence[str]) -> str:
    """What an answer is worth, where the ``best`` are known: one, or several that are equally good."""
    found = race.answer
    if found.kind == "fastest":
        return "different" if len(best) > 1 and found.best in best else "right" if found.best in best else "wrong"
    if found.kind == "equal":
        named = {found.best, *found.equal}
        return "right" if named == {*best} else "equal" if named >= {*best} else "wrong"
    return "likeliest" if found.best in best else "open"


def simulate(asked: argparse.Namespace) -> None:
    """Runs the races, and prints one table."""
    console = Console(width=160)
    table = Table(title=f"{asked.races:,} races each, threshold {percent(THRESHOLD)}", title_justify="left")
    for title in (
        "pool", "ways", "the best", "right", "likeliest", "wrong", "differ", "equal", "open", "rounds",
        "processes", "time",
        "fixed: right", "wrong", "differ", "time",
    ):  # fmt: skip
        table.add_column(title, justify="left" if title in ("pool", "the best") else "right")
    paths = asked.pools or [path for path in sorted(POOLS.glob("*.json")) if "cases" in json.loads(path.read_bytes())]
    if not paths:
        sys.exit("There is no pool: python -m benchmarks.race record")
    begin = time.perf_counter()
    with ProcessPoolExecutor() as workers:
        for path in paths:
            console.print(spreads(path))
            pool = read(path)
            cases = [case for name, case in pool.cases.items() if asked.case in (None, name)]
            sources = [Source.of(case) for case in cases if len(case.alone) > 1 and len(case.together) > 1]
            for candidates in asked.candidates:
                for truth in TRUTHS:
                    play = partial(raced, sources, truth, candidates)
                    found = list(workers.map(play, range(asked.races), chunksize=max(1, asked.races // 64)))
                    table.add_row(path.stem, str(candidates), truth, *row(found, truth))
    table.caption = (
        "right: the best named, or both called equally fast; likeliest: named, but not sure; wrong: a slower one "
        "named;\ndiffer: one of two equal ones named; equal: the best and the next called equally fast; open: another "
        "one called likeliest.\nFixed: the same number of processes as repeats."
    )
    console.print(table)
    console.print(f"Simulated in {duration(time.perf_counter() - begin)}.")


def row(found: Sequence[Outcome], truth: str) -> list[str]:
    """Cells of a table."""
    tied = not TRUTHS[truth]

    def share(kind: str, of: Callable[[Outcome], str]) -> str:
        return percent(round(sum(of(each) == kind for each in found) / len(found), 3))

    def mean(of: Callable[[Outcome], float]) -> float:
        return statistics.fmean(map(of, found))

    answers, fixed = (lambda each: each.answer), (lambda each: each.fixed)
    return [
        share("right", answers), share("likeliest", answers), share("wrong", answers),
        share("different", answers) if tied else "",
        "" if tied else share("equal", answers), share("open", answers), f"{mean(lambda each: each.rounds):.1f}",
        f"{mean(lambda each: each.processes):.0f}", f"{mean(lambda each: each.seconds):.0f} s",
        share("right", fixed), share("wrong", fixed), share("different", fixed) if tied else "",
        f"{mean(lambda each: each.fixed_seconds):.0f} s",
    ]  # fmt: skip


# decide


@dataclass(frozen=True)
class Answered:
    """What a run said; ``sure`` is not the likeliest of several, nor the fastest of what was measured once."""

    fastest: list[str]
    sure: bool
    medians: dict[str, float]
    processes: int
    seconds: float


def decide(asked: argparse.Namespace) -> None:
    """Runs ``inferlens bench`` again and again, and judges its answers by a long reference."""
    console = Console(width=140)
    here = Path(__file__).parent.parent
    words = [asked.model, *asked.words.split()]
    asked.reference = asked.reference or POOLS / ("reference-busy.json" if asked.busy else "reference.json")
    if asked.reference.exists():
        reference = json.loads(asked.reference.read_bytes())
        if reference["words"] != words:
            sys.exit(f"{asked.reference} is of {' '.join(reference['words'])}: name another one with --reference")
    else:
        console.print("A reference first: 20 processes of each, in turns.")
        with others(asked.busy):
            said = bench(here, [*words, "--repeats", "20", "--mode", "latency"])
        reference = {"words": words, "fastest": said.fastest, "medians": said.medians, "seconds": said.seconds}
        asked.reference.parent.mkdir(parents=True, exist_ok=True)
        asked.reference.write_text(json.dumps(reference, indent=1) + "\n", encoding="utf-8")
    busy = " while other programs took half of the cores" if asked.busy else ""
    told = f"{asked.runs} runs of inferlens bench {' '.join(words)}{busy}; reference: {told_of(reference['fastest'])}"
    table = Table(title=told, title_justify="left")
    for title in ("run", "of", "fastest", "median", "next", "processes", "time", ""):
        table.add_column(title, justify="left" if title in ("of", "fastest", "next", "") else "right")
    counts: dict[str, list[tuple[str, float]]] = {}
    with others(asked.busy):
        for number in range(asked.runs):
            for name, checkout in [("this", here), *([("beside", asked.beside)] if asked.beside else [])]:
                said = bench(checkout, words)
                verdict = compared(said.fastest, reference["fastest"]) + ", not sure" * (not said.sure)
                counts.setdefault(name, []).append((verdict, said.seconds))
                order = sorted(said.medians, key=said.medians.__getitem__)
                rest = [each for each in order if each not in said.fastest]
                table.add_row(
                    str(number + 1), name, told_of(said.fastest), duration(said.medians[order[0]]) if order else "–",
                    f"{rest[0]} {duration(said.medians[rest[0]])}" if rest else "–", str(said.processes),
                    duration(said.seconds), verdict,
                )  # fmt: skip
                console.print(
                    f"{number + 1} {name}: {told_of(said.fastest)}, {duration(said.seconds)}", highlight=False
                )
    console.print(table)
    for name, found in counts.items():
        verdicts = Counter(verdict for verdict, _ in found)
        said = listing([f"{count} {verdict}" for verdict, count in verdicts.most_common()])
        console.print(
            f"{name}: {said}; {duration(statistics.median(seconds for _, seconds in found))} each.", highlight=False
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
        rows = [each for each in json.loads(told.stdout)["rows"] if each["ranked"] and each["median"]]
        processes = len(list(Path(folder).rglob("record.json*")))
    medians = {each["name"]: each["median"] for each in rows}
    fastest = [each for each in rows if each["fastest"]]
    sure = all(each.get("standing") not in ("likeliest", "once") for each in fastest)
    return Answered([each["name"] for each in fastest], sure, medians, processes, seconds)


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
