"""Whether the statistics keep their promises, on made-up samples of which the truth is known.

How often the 95 % interval of a median holds, how often the start of the steady state is found, how often two of the
same are told apart, alone and with a look after every round, and how often a slowdown of 3 % is found. All seeded: the
same tables every time, in Markdown. Takes about five minutes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

from inferlens.analysis.race import VERDICT_SHARE
from inferlens.stats.comparison import (
    CPU_NOISE,
    Comparison,
    allowed_error,
    compare,
    conclude,
    log_medians,
    paired_difference,
)
from inferlens.stats.intervals import Interval, mean_interval, median_interval, quantile_interval
from inferlens.stats.race_rule import LEAST_ROUNDS
from inferlens.stats.steady import diagnostics, steady
from tests.stats.series import Array, autoregressive, processes, shaped

SEED = 20260
RUNS = 2000
COUNTS = (50, 200, 1000)
# Coverage is not judged on fewer runs than this: too few of a kind were left without a doubt.
_LEAST_RUNS = 100

Rows = list[list[str]]


def main() -> None:
    """Prints the tables."""
    print(f"Seed {SEED}.\n")
    parts: list[tuple[str, list[str], Callable[[], Rows]]] = [
        (
            f"The median's 95 % interval, {RUNS} runs",
            ["samples", "n", "covers", "doubted", "wrong without a doubt", "none", "covers, doubted or not"],
            medians,
        ),
        ("Other 95 % intervals, of independent normal samples", ["of", "n", "covers", "has none"], others),
        ("Steady state, 300 runs", ["course", "noise", *(f"n = {count}" for count in COUNTS)], courses),
        (
            f"Two cases compared, {RUNS // 2} runs",
            [
                "processes",
                "samples",
                "between",
                "pairs",
                "same: told apart",
                "same: SAME",
                "3 % slower: SLOWER",
                "covers",
            ],
            comparisons,
        ),
        (
            "Comparisons side by side, of the same with the same: 5 processes, 50 samples, 1 % between",
            ["comparisons", "threshold", "any told apart", "the same, uncorrected"],
            families,
        ),
        (
            "A look after every round: 50 samples, 1 % between",
            [
                "rounds at most",
                "threshold",
                "same: told apart",
                "the same, uncorrected",
                "3 % slower: SLOWER",
                "rounds then",
            ],
            sequences,
        ),
    ]
    for title, header, rows in parts:
        begin = time.perf_counter()
        table = [header, ["---"] * len(header), *rows()]
        print(f"### {title}\n")
        print("\n".join("| " + " | ".join(row) + " |" for row in table))
        print(f"\n{time.perf_counter() - begin:.0f} s\n", flush=True)


def kinds(count: int, runs: int) -> dict[str, tuple[Array, float]]:
    """Series of each kind, one in a row, and their true median."""
    drawn = autoregressive(SEED, runs, count, 0.0)
    slow = autoregressive(SEED, runs, count, 0.9)
    chance = np.random.default_rng(SEED + 1).random((runs, count))
    at = np.arange(count) / (count - 1) - 0.5
    quantile = NormalDist().inv_cdf
    return {
        "normal": (1 + 0.05 * drawn, 1.0),
        "log-normal, sigma 0.3": (np.exp(0.3 * drawn), 1.0),
        "two modes, 60 : 40": (1 + 0.02 * drawn + 0.3 * (chance < 0.4), 1 + 0.02 * quantile(0.5 / 0.6)),
        "2 % outliers, 1.5 to 3 times": (
            np.where(chance < 0.02, 1.5 + 75 * chance, 1 + 0.05 * drawn),
            1 + 0.05 * quantile(0.5 / 0.98),
        ),
        "drift of 6 deviations": (1 + 0.3 * at + 0.05 * drawn, 1.0),
        "drift of 1 deviation": (1 + 0.05 * at + 0.05 * drawn, 1.0),
        "autocorrelation 0.5": (1 + 0.05 * autoregressive(SEED, runs, count, 0.5), 1.0),
        "autocorrelation 0.9": (1 + 0.05 * slow, 1.0),
        "autocorrelation 0.9, as much noise": (1 + 0.05 * slow + 0.05 * drawn, 1.0),
        "clock steps of a fifth of a deviation": (np.round(250 + 5 * drawn) / 250, 1.0),
        "clock steps of a deviation": (np.round(50.3 + drawn) / 50.3, 1.0),
    }


def medians(runs: int = RUNS, counts: Sequence[int] = COUNTS) -> Rows:
    """Coverage of the median's interval by kind of samples and their number."""
    rows = []
    for count in counts:
        for kind, (series, truth) in kinds(count, runs).items():
            held, known, doubted = covered(series, truth)
            judged = share(held[~doubted]) if (~doubted).sum() >= _LEAST_RUNS else f"too few: {(~doubted).sum()}"
            wrong = share(~held & ~doubted)
            rows.append([kind, str(count), judged, share(doubted), wrong, share(~known), share(held[known])])
    return sorted(rows, key=lambda row: list(kinds(4, 1)).index(row[0]))


def covered(series: Array, truth: float) -> tuple[Array, Array, Array]:
    """Of each series: whether its interval holds the truth, whether it has one, and whether it is doubted."""
    intervals = [median_interval(list(one)) for one in series]
    doubted = [
        interval is None or any(diagnostic.target == "interval" for diagnostic in diagnostics(list(one)))
        for interval, one in zip(intervals, series, strict=True)
    ]
    # A rounded truth and the mean of two numbers may differ in the last digit.
    held = [one is not None and one.low - 1e-12 <= truth <= one.high + 1e-12 for one in intervals]
    return np.array(held), ~is_none(intervals), np.array(doubted)


def others() -> Rows:
    """Coverage of the mean's and of quantiles' intervals."""
    rows = []
    for name, portion in (("mean", 0.0), ("p5", 0.05), ("p95", 0.95), ("p99", 0.99)):
        truth = NormalDist().inv_cdf(portion) if portion else 0.0
        for count in COUNTS:
            series = autoregressive(SEED, RUNS, count, 0.0)
            found = [quantile_interval(list(s), portion) if portion else mean_interval(list(s)) for s in series]
            known = np.array([truth in one for one in found if one is not None])
            rows.append([name, str(count), share(known) if known.size >= _LEAST_RUNS else "–", share(is_none(found))])
    return rows


def is_none(found: Sequence[Interval | None]) -> Array:
    return np.array([one is None for one in found])


def courses(runs: int = 300) -> Rows:
    """How often each course is told, by noise and number of samples, and where the steady state is said to begin."""
    right = {
        "flat": "steady",
        "step down": "warm-up",
        "step up": "warm-up",
        "short decay": "warm-up",
        "slow first calls": "warm-up",
        "late step up": "never-steady",
        "long decay": "drifting",
        "drift up": "drifting",
        "drift down": "drifting",
        "cycles": "cycling",
    }
    rows = []
    for noise, correlation, outliers in (
        ("white", 0.0, 0.0),
        ("autocorrelation 0.9", 0.9, 0.0),
        ("outliers", 0.0, 0.02),
    ):
        for course, reason in right.items():
            cells = []
            for count in COUNTS:
                found = [steady(list(one)) for one in noisy(course, count, runs, correlation, outliers)]
                hits = [one for one in found if one.reason == reason]
                start = (
                    f", from {np.median([one.start for one in hits]) / count:.1%}"
                    if reason == "warm-up" and hits
                    else ""
                )
                cells.append(f"{len(hits) / runs:.1%}{start}")
            rows.append([f"{course}: {reason}", noise, *cells])
    return rows


def noisy(course: str, count: int, runs: int, correlation: float, outliers: float) -> Array:
    """Latencies of a course with noise of 2 %, and a share of outliers, 1 in the logarithm in the mean."""
    noise = 0.02 * autoregressive(SEED, runs, count, correlation)
    generator = np.random.default_rng(SEED + 2)
    noise += (generator.random(noise.shape) < outliers) * generator.exponential(1.0, noise.shape)
    return np.asarray(shaped(course, count) * np.exp(noise))


def comparisons(runs: int = RUNS // 2) -> Rows:
    """False verdicts, and how often a slowdown of 3 % is found, by processes and samples."""
    rows = []
    for number, count, between, paired in (
        *((number, count, 0.01, False) for number in (1, 2, 3, 5, 10, 20) for count in (50, 200)),
        *((number, 50, 0.0, False) for number in (1, 2, 3, 5, 10)),
        *((number, 50, 0.01, True) for number in (2, 3, 5, 10, 20)),
    ):
        same, held = verdicts(number, count, between, paired, 1.0, runs)
        slow, _ = verdicts(number, count, between, paired, 1.03, runs)
        told = (same["FASTER"] + same["SLOWER"]) / runs
        cells = [told, same["SAME"] / runs, slow["SLOWER"] / runs, held]
        words = [str(number), str(count), f"{between:.0%}", "yes" if paired else "no"]
        rows.append(words + [f"{cell:.1%}" for cell in cells])
    return rows


def verdicts(
    number: int, count: int, between: float, paired: bool, times: float, runs: int
) -> tuple[Counter[str], float]:
    """Verdicts on ``number`` processes of ``count`` samples, and how often the interval holds ``times``."""
    generator = np.random.default_rng(SEED)
    found: Counter[str] = Counter()
    held = 0
    for _ in range(runs):
        base = processes(generator, number, count, between)
        other = processes(generator, number, count, between, times=times)
        one = in_turns(log_medians(base), log_medians(other)) if paired else compare(base, other)
        found[one.verdict] += 1
        held += one.interval is not None and one.interval.low <= times <= one.interval.high
    return found, held / runs


def in_turns(
    base: Sequence[float], other: Sequence[float], threshold: float = 0.02, corrected: bool = True
) -> Comparison:
    """Return the verdict on two cases whose processes took turns, from their logarithms, as a race compares them."""
    difference = paired_difference(dict(enumerate(base)), dict(enumerate(other)), CPU_NOISE)
    level = 1 - VERDICT_SHARE * allowed_error(difference, 0.95) if difference and corrected else 0.95
    return conclude(difference, threshold=threshold, level=level)


def families(runs: int = 500, number: int = 10) -> Rows:
    """How often any of ``number`` comparisons of the same with the same, side by side, tells two apart."""
    rows = []
    for threshold in (0.02, 0.001):
        cells = []
        for comparisons_ in (number, 1):
            generator = np.random.default_rng(SEED)
            false = 0
            for _ in range(runs):
                sides = [processes(generator, 5, 50) for _ in range(2 * number)]
                found = [
                    compare(base, item, threshold=threshold, comparisons=comparisons_).verdict
                    for base, item in zip(sides[::2], sides[1::2], strict=True)
                ]
                false += "FASTER" in found or "SLOWER" in found
            cells.append(f"{false / runs:.1%}")
        rows.append([str(number), f"{threshold:.1%}", *cells])
    return rows


def sequences(runs: int = 1000) -> Rows:
    """False verdicts, and how often and when a slowdown of 3 % is found, with a look after every round."""
    rows = []
    for rounds, threshold in ((10, 0.02), (20, 0.02), (20, 0.001)):
        same, _ = raced(rounds, 1.0, runs, threshold)
        naive, _ = raced(rounds, 1.0, runs, threshold, corrected=False)
        slow, taken = raced(rounds, 1.03, runs, threshold)
        told = [(one["FASTER"] + one["SLOWER"]) / runs for one in (same, naive)]
        cells = [*(f"{one:.1%}" for one in told), f"{slow['SLOWER'] / runs:.1%}", f"{taken:.1f}"]
        rows.append([str(rounds), f"{threshold:.1%}", *cells])
    return rows


def raced(
    rounds: int, times: float, runs: int, threshold: float = 0.02, corrected: bool = True
) -> tuple[Counter[str], float]:
    """Verdicts of sequences of at most ``rounds`` rounds, and the mean number of rounds that they took."""
    generator = np.random.default_rng(SEED)
    found: Counter[str] = Counter()
    taken = 0
    for _ in range(runs):
        base, other, verdict = list[float](), list[float](), "UNDECIDED"
        while verdict == "UNDECIDED" and len(base) < rounds:
            base += log_medians(processes(generator, 1, 50))
            other += log_medians(processes(generator, 1, 50, times=times))
            if len(base) >= LEAST_ROUNDS:
                verdict = in_turns(base, other, threshold, corrected).verdict
        found[verdict] += 1
        taken += len(base)
    return found, taken / runs


def share(hits: Array) -> str:
    """The share of true ones, in percent."""
    return f"{float(np.mean(hits)):.1%}" if hits.size else "–"


if __name__ == "__main__":
    main()
