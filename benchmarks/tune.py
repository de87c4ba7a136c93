"""How good and how cheap the search of a tuning is, on planted spaces whose best is known.

    python -m benchmarks.tune [--races 100] [--seed 0] [POOL]

A space has families, and settings that work in some of them: most do nothing, some help or harm by some percent, a few
by a fifth; a few need or exclude another one, and some pairs do more or less together than alone. A process takes the
candidate's true time, times what one of the pool's processes differed by (``benchmarks.race``: what all of a round
share, and what each has of its own). Found is what the search names after its last rounds, of fresh processes of the
finalists. *Own time* is what the search itself takes for each process that is measured. Beneath is how often settings
of winners that do nothing are called an effect, and how often the interval of a setting is right.

Beside it, at the same number of processes: candidates drawn at random, and Optuna's TPE where it is installed; and
*exhaustive*: each candidate as often as a finalist was measured.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import util
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.race import POOLS, Source, read
from inferlens.analysis.tuning import Observation, Point, setting_effects
from inferlens.backends.base import Knob
from inferlens.backends.fake import Fake
from inferlens.execution.protocol import PlannedCase
from inferlens.execution.tuning.search import Search
from inferlens.execution.tuning.space import SearchSpace, combinations
from inferlens.models.model import ModelInfo
from inferlens.record.record import Environment, Measurement, ModelFacts, Record
from inferlens.spec.case import Budget, Case
from inferlens.spec.objective import Objective
from inferlens.stats.race_rule import LEAST_ROUNDS, Entry, RaceData
from inferlens.units import duration, percent

CONFIRMING = 10  # rounds at most
TITLES = (
    "candidates", "way", "within 2 % of the best", "median behind", "worst of 20", "processes", "of all", "own time",
)  # fmt: skip


class Planted:
    """Families and settings with their true times: variants and knobs that the fake backend is given."""

    def __init__(self, size: int, draw: random.Random) -> None:
        count = 5 if size <= 50 else 8 if size <= 500 else 12
        number = math.log2(size / count)
        names = [f"option_{place}" for place in range(math.ceil(number) + 3)]
        common = {name: self._drawn(draw) for name in names}
        knobs: list[Knob] = []
        self._level: dict[str, float] = {}
        self._effect: dict[tuple[str, str], float] = {}
        self._pairs: dict[tuple[str, str, str], float] = {}
        cases = [Case(model="fake:demo", backend="fake", variant=f"family_{place}") for place in range(count)]
        for case in cases:
            self._level[case.label] = draw.uniform(0.0, 0.7)
            own = draw.sample(names, max(1, round(number)))
            for name in own:
                self._effect[case.label, f"{name}=1"] = common[name] + draw.gauss(0, 0.3) * abs(common[name])
            for one, item in itertools.combinations(sorted(own), 2):
                if draw.random() < 0.2:
                    self._pairs[case.label, f"{one}=1", f"{item}=1"] = draw.gauss(0, 0.02)
            needs = {own[0]: (own[1],)} if len(own) > 2 and draw.random() < 0.5 else {}
            excludes = {own[2]: (own[3],)} if len(own) > 3 and draw.random() < 0.5 else {}
            for name in own:
                conditions = {"needs": needs.get(name, ()), "excludes": excludes.get(name, ())}
                knobs.append(Knob(name=name, values=(1,), variants=(case.variant,), **conditions))
        Fake.options = msgspec.defstruct("Options", [(name, int, 0) for name in names], frozen=True)
        Fake.variants, Fake.knobs = tuple(case.variant for case in cases), tuple(knobs)
        model_info = ModelInfo(spec="fake:demo", name="demo", format="fake")
        families = tuple(PlannedCase(case, model_info, None) for case in cases)
        self.space = space = SearchSpace(families, (), {"fake": Fake.knobs})
        self.families = [space.point(case) for case in cases]
        self.options = {case.label: [f"{name}=1" for name in space.values(case)] for case in cases}
        self.all = [space.point(case) for family in cases for case in combinations(family, space)]
        self.best = min(map(self.log, self.all))

    @staticmethod
    def _drawn(draw: random.Random) -> float:
        kind = draw.random()
        return 0.0 if kind < 0.5 else draw.gauss(0, 0.05) if kind < 0.85 else draw.choice((-0.2, 0.2, -0.1))

    def log(self, point: Point) -> float:
        """The logarithm of a candidate's true time."""
        pairs = itertools.combinations(sorted(point.settings), 2)
        return (
            self._level[point.family]
            + sum(self._effect[point.family, name] for name in point.settings)
            + sum(self._pairs.get((point.family, *pair), 0.0) for pair in pairs)
        )


class Machine:
    """Measures candidates of a space, with the noise of a pool."""

    def __init__(self, space: Planted, sources: Sequence[Source], draw: random.Random) -> None:
        self.space, self.draw, self.processes = space, draw, 0
        self.own = 0.0  # seconds that the search itself took, a process
        self.told: list[tuple[bool, bool, bool]] = []  # of the winner's settings: does nothing, called an effect, right
        self._source = draw.choice(sources)
        self._waves = self._source.common
        self._place = draw.randrange(len(self._waves))

    def round(self, points: Iterable[Point]) -> dict[Point, float]:
        """A process of each, in turns."""
        wave = self._waves[self._place % len(self._waves)]
        self._place += 1
        found = {}
        for point in points:
            self.processes += 1
            own = self.draw.choice(self._source.own)
            found[point] = self.space.log(point) + wave + self.draw.choice((-1, 1)) * own
        return found


def confirmed(machine: Machine, finalists: Sequence[Point]) -> tuple[Point, list[Observation]]:
    """Return which of the finalists is named, after rounds of fresh processes, and what these measured."""
    rounds: dict[Point, dict[Hashable, float]] = {point: {} for point in finalists}
    names = {str(point): point for point in finalists}
    left, leader = list(finalists), finalists[0]
    for number in range(CONFIRMING if len(finalists) > 1 else 0):
        for point, log in machine.round(left).items():
            rounds[point][number] = log
        if number + 1 < LEAST_ROUNDS:
            continue
        state = RaceData({name: Entry(rounds=rounds[p]) for name, p in names.items()}).state(names, threshold=0.02)
        assert state
        leader, left = names[state.leader], [names[name] for name in (state.leader, *state.open)]
        if state.decided:
            break
    seen = [Observation(point, log, f"final {number}") for point in rounds for number, log in rounds[point].items()]
    return leader, seen


def record_of(case: Case, log: float) -> Record:
    """Return the record of a process with the logarithm of its latency."""
    latency = Measurement(metric="latency", unit="s", clock="drawn", samples=(math.exp(log),))
    return Record(
        id=case.digest, created="", case=case, budget=Budget(iterations=1), status="ok",
        model=ModelFacts(name="demo"), environment=Environment(), measurements=(latency,),
    )  # fmt: skip


def searched(machine: Machine) -> Point:
    """What the search names."""
    space, begin = machine.space, time.process_time()
    search = Search(space.space, Objective.parse("latency"))
    while cases := search.ask(lambda _: 1.0):
        logs = machine.round(map(space.space.point, cases)).values()
        search.tell(list(map(record_of, cases, logs)))
    finalists = list(map(space.space.point, search.finalists(rival=True)))
    machine.own = (time.process_time() - begin) / machine.processes
    winner, finals = confirmed(machine, finalists)
    effects = setting_effects([*search.model.observations, *finals], winner)
    for name in sorted(winner.settings):
        true = math.exp(space.log(Point(winner.family, winner.settings - {name})) - space.log(winner))
        _, low, high = effects[name] or (1.0, 0.0, math.inf)
        machine.told.append((abs(true - 1) < 1e-9, low > 1 or high < 1, low <= true <= high))
    return winner


def drawn(machine: Machine, budget: int) -> Point:
    """What as many processes of random candidates name, in rounds with the best so far."""
    left = machine.space.all[:]
    machine.draw.shuffle(left)
    best, behind = left.pop(), 0.0
    while left and machine.processes < budget:
        some = [left.pop() for _ in range(min(3, len(left)))]
        found = machine.round([best, *some])
        ahead = min(some, key=found.__getitem__)
        if found[ahead] < found[best] - behind:
            best = ahead
    return best


def tpe(machine: Machine, budget: int) -> Point:
    """What Optuna's TPE names after as many processes, each relative to a family's default in the same round."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = machine.space
    base, known = space.families[0], set(space.all)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=machine.draw.randrange(10**6)))

    def objective(trial: optuna.Trial) -> float:
        family = trial.suggest_categorical("family", [family.family for family in space.families])
        own = space.options[family]
        chosen = frozenset(name for name in own if trial.suggest_categorical(f"{family} {name}", [False, True]))
        point = Point(family, chosen)
        if point not in known:
            raise optuna.TrialPruned
        trial.set_user_attr("point", sorted(chosen))
        found = machine.round([base, point]) if point != base else {base: 0.0}
        return found[point] - found[base]

    while machine.processes < budget:
        study.optimize(objective, n_trials=1)
    best = study.best_trial
    return Point(best.params["family"], frozenset(best.user_attrs["point"]))


def raced(
    sources: Sequence[Source], size: int, seed: int
) -> tuple[dict[str, tuple[float, int, float]], list[tuple[bool, bool, bool]]]:
    """How far each way's choice is behind the best, its processes, and its own seconds for each of them.

    And what the search told of the settings of its winner.
    """
    space, told = Planted(size, random.Random(f"space {size} {seed}")), list[tuple[bool, bool, bool]]()

    def played(way: Callable[[Machine], Point]) -> tuple[float, int, float]:
        machine = Machine(space, sources, random.Random(f"machine {size} {seed}"))
        chosen = way(machine)
        told.extend(machine.told)
        return math.expm1(space.log(chosen) - space.best), machine.processes, machine.own

    found = {"search": played(searched)}
    budget = found["search"][1]
    found["random"] = played(partial(drawn, budget=budget))
    if util.find_spec("optuna"):
        found["Optuna's TPE"] = played(partial(tpe, budget=budget))
    found["candidates"] = 0.0, len(space.all), 0.0
    return found, told


def main(words: Sequence[str]) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune")
    parser.add_argument("pool", nargs="?", type=Path, default=POOLS / "cpu.json")
    parser.add_argument("--races", type=int, default=100, help="spaces of each size")
    parser.add_argument("--seed", type=int, default=0, help="of the first space")
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 500, 5000])
    args = parser.parse_args(words)
    sources = [Source.of(case) for case in read(args.pool).cases.values()]
    table = Table(title=f"{args.races} planted spaces each, noise of {args.pool.stem}", title_justify="left")
    for title in TITLES:
        table.add_column(title, justify="left" if title == "way" else "right")
    told: list[tuple[bool, bool, bool]] = []
    with ProcessPoolExecutor() as workers:
        for size in args.sizes:
            races = list(workers.map(partial(raced, sources, size), range(args.seed, args.seed + args.races)))
            found, told = [item for item, _ in races], [*told, *(one for _, item in races for one in item)]
            every = statistics.fmean(item["candidates"][1] for item in found)
            for way in [name for name in found[0] if name != "candidates"]:
                behind = sorted(item[way][0] for item in found)
                processes = statistics.fmean(item[way][1] for item in found)
                table.add_row(
                    f"{every:.0f}", way, percent(sum(item <= 0.02 for item in behind) / len(behind)),
                    percent(round(statistics.median(behind), 4)), percent(round(behind[int(0.95 * len(behind))], 4)),
                    f"{processes:.0f}", percent(round(processes / (every * (1 + CONFIRMING)), 3)),
                    duration(own) if (own := statistics.fmean(item[way][2] for item in found)) else "",
                )  # fmt: skip
    Console(width=120).print(table)
    called = [called for nothing, called, _ in told if nothing]
    print(f"Of {len(called)} settings of winners that do nothing {sum(called)} are called an effect.")
    print(f"Of {len(told)} intervals of settings {sum(right for *_, right in told)} are right.")
    if not util.find_spec("optuna"):
        print("Optuna is not installed: its TPE is left out.")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
