"""How often two of the same are called different, and how often a slowdown of 3 % is found: on real processes.

``coverage`` asks that of made-up samples; here every process is measured as ``inferlens bench --repeats`` measures it,
on this machine, with whatever else runs on it. A pool is measured first (see ``pool``): in each round a case, the same
case once more, and the same made 3 % slower (see ``planted``), in a drawn order. Pairs of sides are formed of it:

* *in turns*, as two cases of one run: both sides of pair ``p`` are of the 5 consecutive rounds from round ``p`` on
  (from the first again when the rounds end). Of the same: a coin for each pair and round says which of the two
  processes is the base. Against the slower one: the coin says which is the base, the other is not used. *Paired* is the
  same with the interval of pairs.
* *in rows*, as two runs one after the other: the base is of 5 rounds, the candidate of the 5 rounds after them. As the
  pool's rounds have three processes, these runs are three times as far apart as real ones.
* *1 + 1*: one process on each side, where nothing but a large difference may be claimed.
* *looks*: one after every round, at most 20 rounds (``stats.compare``).

With ``--interleave calls`` the two processes of a pair are alive at once and in turns, as with ``inferlens ab`` on the
CPU; then pairs are *paired*, or looked at, and nothing else.

No process is on both sides of a pair, or twice on one. Pairs share processes with other pairs: neighbouring ones have
four of five rounds in common, and where there are more pairs than windows of rounds (the column *pairs* has both), the
same processes come again with other coins. So the interval of a share of *all* pairs (Clopper and Pearson 1934, as if
they were independent) is too narrow. *Apart* are the pairs that share nothing; their interval is right, and wide.

Everything is told of all rounds, and of those in which the watch saw nothing disturb any of its processes.

    python -m benchmarks.false_alarms --rounds 100 --minutes 60 [--backend pytorch] [--pool FILE ...]
    python -m benchmarks.false_alarms --interleave calls --backend pytorch --device cuda --precision fp16 \
        --model benchmarks.spread:cuda_32

The pool goes on where it was; ``--rounds 0`` prints what is there. Of several pools, each measured on CPUs of its own
at the same time (``taskset``), the verdicts are of all together; no pair is of two pools. The planted size is measured
too: calls of the case and of the slower one alternate in one process, and the ratio is the median of the neighbours'
ratios.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import comb, exp, log, sqrt
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import pool
from benchmarks.planted import SlowedOnGpu, installed, slowed
from benchmarks.pool import BASE, BESIDE, SLOWER, TWIN, Process, Round, Setting
from inferlens.backends import BACKENDS
from inferlens.backends.base import Preparation
from inferlens.measure import environment
from inferlens.models import inputs, resolve
from inferlens.spec.case import Case
from inferlens.stats.between_process import centres
from inferlens.stats.compare import UNSEEN_ON_CPU, Sequential, compare

SIDE = 5  # processes on each side, as --repeats 5
MOST_ROUNDS = 20
VERDICTS = ("FASTER", "SLOWER", "SAME", "UNDECIDED")
Side = list[list[float]]
Pair = tuple[Side, Side]
Judge = Callable[[Pair], tuple[str, int]]


def main(words: Sequence[str] = ()) -> None:
    """Measures, and prints the tables."""
    asked = _arguments(words)
    console = Console(width=160)
    with installed():
        model = asked.model or _model(asked.backend)
        setting = Setting(
            model=model, backend=asked.backend, slower=asked.slower, calls=asked.interleave == "calls",
            device=asked.device, precision=asked.precision,
        )  # fmt: skip
        paths = [Path(text) for text in asked.pool or [f"results/false_alarms-{asked.backend.partition(':')[0]}.jsonl"]]
        if asked.rounds:
            for one in pool.fill(paths[0], setting, asked.rounds, asked.minutes * 60):
                console.print(_line(one), highlight=False)
        read = [pool.read(path) for path in paths]
        setting = read[0][0] or setting
        console.print(planted_size(setting), highlight=False)
    found = [pool.rounds(processes, setting.kinds) for _, processes in read]
    calm = [[one for one in rounds if all(process.calm for process in one.values())] for rounds in found]
    machine = environment.collect()
    console.print(
        f"{machine.cpu}, {len(os.sched_getaffinity(0))} CPUs usable of {os.cpu_count()}. "
        f"{', '.join(map(str, paths))}: {sum(len(processes) for _, processes in read)} processes, {_count(found)} "
        f"rounds of {len(setting.kinds)}, {_count(calm)} of them undisturbed.",
        highlight=False,
    )
    for name, pools in (("all rounds", found), ("undisturbed rounds", calm)):
        least = SIDE if setting.calls else 2 * SIDE
        pools = [rounds for rounds in pools if len(rounds) >= least]
        if not pools:
            console.print(f"{name}: {least} at least are needed for pairs.")
            continue
        for number, rounds in enumerate(pools, 1):
            console.print(deviations(f"{name} of pool {number}" if len(pools) > 1 else name, rounds))
        console.print(verdicts(name, pools, asked.pairs, asked.slow_pairs))


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.false_alarms")
    parser.add_argument("--backend", default="onnxruntime:cpu", help="onnxruntime:cpu or pytorch")
    parser.add_argument("--model", help="by default mobilenet_v3_small: for ONNX Runtime exported once")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--slower", type=float, default=0.03, help="the planted slowdown, as a share")
    parser.add_argument("--rounds", type=int, default=100, help="of three processes each, in the pool")
    parser.add_argument("--minutes", type=float, default=120.0, help="after which no process is begun")
    parser.add_argument("--interleave", choices=("processes", "calls"), default="processes")
    parser.add_argument("--pool", nargs="+", help="the file, by default in results/; of several the first is filled")
    parser.add_argument("--pairs", type=int, default=200, help="of the same with the same")
    parser.add_argument("--slow-pairs", type=int, default=100, help="of the same with the slower one")
    return parser.parse_args(words)


def _count(pools: Sequence[Sequence[Round]]) -> int:
    return sum(map(len, pools))


def _model(backend: str) -> str:
    """The model's name; for ONNX Runtime a file, made once, which needs no PyTorch to be read."""
    name = "torchvision:mobilenet_v3_small"
    if backend.partition(":")[0] == "pytorch":
        return name
    path = Path("results/mobilenet_v3_small.onnx")
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        subprocess.run([sys.executable, "-m", "inferlens", "export", name, "--to", str(path)], check=True)
    return str(path)


def _line(one: Process) -> str:
    median = f"{statistics.median(one.samples) * 1e3:.4f} ms" if one.samples else "–"
    again = ", measured twice" if one.again else ""
    return f"{one.round:4} {one.kind:7} {one.status} {median}, {len(one.samples)} samples, {one.seconds:.1f} s{again}"


def planted_size(setting: Setting, calls: int = 4000) -> str:
    """How much slower the slower one is: calls of both alternate, which is first changes; in one process."""
    name, _, variant = setting.backend.partition(":")
    found = resolve.find(setting.model)
    where: dict[str, Any] = {"device": setting.device, "precision": setting.precision, "threads": setting.threads}
    case = Case(model=found.spec, backend=name, variant=variant, **where)
    model = resolve.load(case)
    ratios = []
    with BACKENDS.get(name)().prepare(model, case, Preparation(Path("."), Path("."))) as runner:
        feed = runner.place(inputs.make_inputs(model, case.seed))
        made_slower = SlowedOnGpu if setting.device == "cuda" else slowed
        both = runner.infer, made_slower(runner.infer, setting.slower)
        for index in range(calls + 200):
            order = (0, 1) if index % 2 else (1, 0)
            taken = {which: runner.clock.time(both[which], itertools.repeat(feed), 1).latency[0] for which in order}
            ratios.append(taken[1] / taken[0])
    ordered = sorted(ratios[200:])
    reach = 1.96 * sqrt(calls) / 2
    low, high = (ordered[round(calls / 2 + side)] for side in (-reach, reach))
    return (
        f"Planted: {setting.slower:.1%}. Measured, {calls} neighbouring calls of both in one process: "
        f"{statistics.median(ordered) - 1:+.2%} [{low - 1:+.2%}, {high - 1:+.2%}]"
    )


def deviations(name: str, rounds: Sequence[Round]) -> Table:
    """How far medians of processes differ, and what a process takes."""
    table = Table(title=f"Processes, {name}", title_justify="left")
    headers = (
        "kind", "n", "median, ms", "s each", "load", "twice", "still disturbed",
        "between", "by quartiles", "within", "next alike", "in turns", "by quartiles",
    )  # fmt: skip
    for header in headers:
        table.add_column(header, justify="left" if header == "kind" else "right")
    for kind in rounds[0]:
        mine = [one[kind] for one in rounds]
        found = centres([one.samples for one in mine])
        logs = [centre.log for centre in found]
        errors = [centre.variance for centre in found if centre.variance is not None]
        within = statistics.mean(errors) if errors else 0.0
        between = sqrt(max(statistics.variance(logs) - within, 0.0))
        steps = [a - log(statistics.median(one[BASE].samples)) for a, one in zip(logs, rounds, strict=True)]
        table.add_row(
            kind, str(len(mine)), f"{exp(statistics.mean(logs)) * 1e3:.4f}",
            f"{statistics.mean(one.seconds for one in mine):.1f}", f"{statistics.mean(one.load for one in mine):.1f}",
            str(sum(one.again for one in mine)), str(sum(one.still_disturbed for one in mine)),
            _percent(between), _percent(_by_quartiles(logs)),
            _percent(sqrt(within)), f"{_alike(logs):+.2f}",
            *("–" if kind == BASE else _percent(value / sqrt(2))
              for value in (statistics.stdev(steps), _by_quartiles(steps))),
        )  # fmt: skip
    table.caption = (
        "between, within: relative standard deviations of a process's true median, and of its error. Next alike: "
        "correlation of a round's median with the next round's.\nIn turns: deviation of a process's median where what "
        "both processes of a round share is taken away. By quartiles: as a few far ones do not see."
    )
    return table


def _by_quartiles(values: Sequence[float]) -> float:
    """A standard deviation that outliers do not move: of normal values it is that."""
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 1.349


def _alike(logs: Sequence[float]) -> float:
    return statistics.correlation(logs[:-1], logs[1:]) if len(set(logs)) > 2 else 0.0


def _percent(share: float) -> str:
    return f"{share:.2%}"


def verdicts(name: str, pools: Sequence[Sequence[Round]], same: int, slow: int) -> Table:
    """What was called what."""
    table = Table(title=f"Verdicts, threshold 2 %, 95 %, {name}", title_justify="left")
    columns = ("candidate", "sides", "pairs", *VERDICTS, "wrong [95 %]", "apart: wrong [95 %]", "found", "s per pair")
    for header in columns:
        table.add_column(header, justify="left" if header in columns[:2] else "right", no_wrap=True)
    interleaved = BESIDE in pools[0][0]
    ways: list[tuple[str, int, int, Judge]] = [
        (f"{SIDE} + {SIDE}, in turns", SIDE, 0, _plain),
        (f"{SIDE} + {SIDE}, paired", SIDE, 0, _paired),
        (f"{SIDE} + {SIDE}, in rows", SIDE, SIDE, _plain),
        ("1 + 1", 1, 0, _plain),
        ("looks", MOST_ROUNDS, 0, _looking),
    ]
    if interleaved:
        ways = [way for way in ways if way[3] in (_paired, _looking)]
    cost = statistics.mean(process.seconds for rounds in pools for one in rounds for process in one.values())
    for kind, count in ((TWIN, same), (SLOWER, slow)):
        for sides, size, later, judge in ways:
            if windows(pools, size + later):
                row = _row(pools, kind, count, size, later, judge, cost)
                table.add_row(kind if kind == SLOWER else "the same", sides, *row)
    return table


def _row(
    pools: Sequence[Sequence[Round]], kind: str, count: int, size: int, later: int, judge: Judge, cost: float
) -> Iterator[str]:
    found = [judge(pair) for pair in pairs(pools, kind, count, size, later)]
    counts = Counter(verdict for verdict, _ in found)
    wrong = [verdict in (("FASTER", "SLOWER") if kind == TWIN else ("FASTER", "SAME")) for verdict, _ in found]
    starts = windows(pools, size + later)
    apart = [one for one, (_, start) in zip(wrong, starts, strict=False) if start % (size + later) == 0]
    yield f"{len(found)} of {len(starts)}"
    yield from (str(counts[verdict]) for verdict in VERDICTS)
    yield share(sum(wrong), len(wrong))
    yield share(sum(apart), len(apart))
    yield "–" if kind == TWIN else f"{counts['SLOWER'] / len(found):.1%}"
    yield f"{2 * cost * statistics.mean(used for _, used in found):.0f}"


def windows(pools: Sequence[Sequence[Round]], length: int) -> list[tuple[int, int]]:
    """Where ``length`` rounds of one pool follow each other: the pool's place, and the first of them."""
    return [(place, start) for place, rounds in enumerate(pools) for start in range(len(rounds) - length + 1)]


def pairs(pools: Sequence[Sequence[Round]], kind: str, count: int, size: int, later: int) -> Iterator[Pair]:
    """``count`` pairs of sides, the candidate's of ``kind`` and ``later`` rounds behind the base's."""
    coin = random.Random(pool.SEED)
    for place, start in itertools.islice(itertools.cycle(windows(pools, size + later)), count):
        rounds = pools[place][start:]
        base: Side = []
        candidate: Side = []
        for offset in range(size):
            one, other = coin.sample((BASE, TWIN), 2)
            if kind == SLOWER and BESIDE in rounds[offset]:
                one = BESIDE
            base.append(rounds[offset][one].samples)
            candidate.append(rounds[offset + later][other if kind == TWIN else SLOWER].samples)
        yield base, candidate


def _plain(pair: Pair) -> tuple[str, int]:
    return compare(*pair, unseen=UNSEEN_ON_CPU).verdict, len(pair[0])


def _paired(pair: Pair) -> tuple[str, int]:
    return compare(*pair, paired=True).verdict, len(pair[0])


def _looking(pair: Pair) -> tuple[str, int]:
    race = Sequential(rounds_max=len(pair[0]))
    for base, candidate in zip(*pair, strict=True):
        if not race.finished:
            race.add(base, candidate)
    return race.comparison.verdict if race.comparison else "UNDECIDED", race.rounds


def share(hits: int, count: int) -> str:
    """A share and its exact interval."""
    low, high = clopper_pearson(hits, count)
    return f"{hits / count:.1%} [{low:.1%}, {high:.1%}] of {count}" if count else "–"


def clopper_pearson(hits: int, count: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share (Clopper and Pearson 1934), by halving."""
    tail = (1 - level) / 2
    if not count:
        return 0.0, 1.0
    low = 0.0 if hits == 0 else _root(lambda p: 1 - _at_most(hits - 1, count, p) - tail)
    high = 1.0 if hits == count else _root(lambda p: tail - _at_most(hits, count, p))
    return low, high


def _at_most(hits: int, count: int, p: float) -> float:
    return sum(comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(hits + 1))


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return low


if __name__ == "__main__":
    main(sys.argv[1:])
