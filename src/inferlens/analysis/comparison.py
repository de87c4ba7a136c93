"""The verdicts: which cases became faster or slower, and which stopped working.

Cases match if all that was asked for is the same. Of each side the latest run of a case counts, and its repeats are its
processes. What is wrong, or did not run to its end in every process, has no verdict on its speed: it is never faster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from inferlens.analysis import notes
from inferlens.analysis.interference import MachineLoad, mean_load, record_load
from inferlens.analysis.samples import CaseRuns, device_name, latest, steady_samples
from inferlens.errors import InferlensError, one_line
from inferlens.record.display import Struct
from inferlens.record.record import IN_TURNS, Metric, Record, card_name, machine_kind, machine_name
from inferlens.record.store import Loaded, load_records
from inferlens.spec.case import Case
from inferlens.stats import comparison as statistics
from inferlens.stats.comparison import CPU_NOISE, GPU_NOISE, estimate
from inferlens.stats.intervals import Interval
from inferlens.units import byte_count, duration, listing, percent, plural

METRICS: tuple[Metric, ...] = ("latency", "throughput", "GPU time")
LEVELS = (0.5, 0.9999)
Verdict = Literal["FASTER", "SAME", "SLOWER", "UNDECIDED", "DID NOT RUN"]
Given = str | PathLike[str] | Sequence[Record] | Loaded

OK = "ok"
MISSING = "missing"
WRONG = "wrong"
NOT_MEASURED = "not measured"
UNCHECKED = "Outputs not checked"
# In seconds, or calls per second; what is beyond would leave the range of numbers as a ratio.
_LEAST, _MOST = 1e-100, 1e100
_STATE_CODES = (*notes.OUTCOME_LEVELS, "repeat-failed", "busy")  # notes of what the state says already

# One case: what base and candidate have of it, or ``None``.
Match = tuple[CaseRuns | None, CaseRuns | None]


class Side(Struct, frozen=True, kw_only=True):
    """What one side has of a case.

    Attributes:
        state: ``ok``; or the status of a process that did not run to its end; or ``missing``, ``wrong`` (outputs) or
            ``not measured`` (the metric). All but ``ok`` have nothing to compare.
        device: name of the GPU, or of the CPU for cases on the CPU.
        records: the ids of its records, one for each process; ``created``: when the last of them started.
        runs: how many runs there are of it, of which the newest counts.
        median: over its processes, in seconds, or calls per second; ``None`` unless ``ok``.
        interval: of ``median``, at the comparison's confidence.
        machine_load: what other programs used while it was measured.
    """

    state: str
    reason: str = ""
    device: str = ""
    records: tuple[str, ...] = ()
    created: str = ""
    runs: int = 1
    processes: int = 0
    samples: int = 0
    median: float | None = None
    interval: Interval | None = None
    notes: tuple[str, ...] = ()
    machine_load: MachineLoad = MachineLoad()

    @property
    def ok(self) -> bool:
        """Whether there is something to compare."""
        return self.state == OK


class ComparedCase(Struct, frozen=True, kw_only=True):
    """One case on both sides."""

    case: Case
    verdict: Verdict
    reason: str
    base: Side
    candidate: Side
    ratio: float | None = None  # the candidate's time of a call over the base's: above 1 it is slower
    interval: Interval | None = None  # of ``ratio``, at a level that allows for the number of comparisons
    change: float | None = None  # the candidate's median over the base's, less 1
    change_interval: Interval | None = None  # of ``change``
    between: bool = False

    @property
    def compared(self) -> bool:
        """Whether both sides have something to compare."""
        return self.base.ok and self.candidate.ok

    @property
    def measured_once(self) -> bool:
        """Whether there is one process on each side, which do not show how far processes differ."""
        return self.base.processes == self.candidate.processes == 1

    def likely(self, threshold: float) -> str:
        """What is likeliest where there is no verdict: ``slower``, ``faster`` or ``the same`` within a threshold."""
        ratio = self.ratio or 1.0
        return "slower" if ratio > 1 + threshold else "faster" if ratio < 1 / (1 + threshold) else "the same"

    @property
    def unchecked(self) -> bool:
        """Whether nothing is known of the outputs of a side."""
        return any(note.startswith(UNCHECKED) for side in (self.base, self.candidate) for note in side.notes)

    @property
    def on_neither(self) -> bool:
        """Whether no side has anything to compare: that is no news of the candidate."""
        return not self.base.ok and not self.candidate.ok


class Compared(Struct, frozen=True, kw_only=True):
    """All cases of two sets of records, compared.

    Attributes:
        threshold: the smallest relative difference that matters.
        level: confidence that all verdicts together are right.
        comparisons: how many cases both sides have something to compare of; they share the error 1 - ``level``.
        cases: in the order of the base, then those that only the candidate has.
    """

    metric: Metric
    threshold: float
    level: float
    comparisons: int
    cases: tuple[ComparedCase, ...]
    differences: tuple[Difference, ...] = ()
    problems: tuple[str, ...] = ()

    def of(self, verdict: Verdict) -> tuple[ComparedCase, ...]:
        """The cases with that verdict."""
        return tuple(case for case in self.cases if case.verdict == verdict)

    @property
    def loads(self) -> dict[str, MachineLoad]:
        """What other programs used while the base and the candidate were measured."""
        sides = ("base", "candidate")
        return {name: mean_load(getattr(case, name).machine_load for case in self.cases) for name in sides}

    @property
    def machine_load(self) -> MachineLoad:
        """The same of both sides; busy if one of them was."""
        return mean_load(self.loads.values())

    @property
    def measured_once(self) -> bool:
        """Whether that is so of every case that both sides have something to compare of."""
        return all(case.measured_once for case in self.cases if case.compared)

    @property
    def on_both(self) -> int:
        """How many cases have records on both sides."""
        return sum(MISSING not in (case.base.state, case.candidate.state) for case in self.cases)

    @property
    def exit_code(self) -> int:
        """1 if a case is slower; else 4 if one did not run, or none ran; else 3 if one is undecided; else 0.

        Cases that ran on neither side do not count beside others that ran on both.
        """
        if self.of("SLOWER"):
            return 1
        if not self.comparisons or any(not case.on_neither for case in self.of("DID NOT RUN")):
            return 4
        return 3 if self.of("UNDECIDED") else 0


def compare(
    base: Given,
    candidate: Given,
    *,
    metric: str = "latency",
    threshold: float = 0.02,
    level: float = 0.95,
    unlike: bool = False,
) -> Compared:
    """The verdict on each case of ``candidate`` against the same case of ``base``.

    Args:
        base: a folder with records, at any height, or a record file, or records.
        candidate: as ``base``.
        metric: ``latency``, ``throughput`` or ``GPU time``.
        threshold: the smallest relative difference that matters.
        level: confidence that all verdicts together are right, from 0.5 to 0.9999.
        unlike: whether to compare although machines, drivers or inputs differ.

    Raises InferlensError if there is nothing to compare, the machines differ, or an argument is out of range.
    """
    shown = metric_of(metric)
    check(threshold, level)
    (before, problems), (after, more) = _records(base), _records(candidate)
    found = matches(before, after)
    pairs = [pair for match in found if (pair := pair_of(match))]
    differ = environment_differences(pairs)
    refused = [difference for difference in differ if difference.unlike]
    if refused and not unlike:
        raise conditions_error(refused, len(pairs))
    taken = [(match, read(match[0], shown, level), read(match[1], shown, level)) for match in found]
    count = sum(side.ok and theirs.ok for _, (side, _), (theirs, _) in taken)
    cases = []
    for match, (side, one), (theirs, item) in taken:
        result = None
        if side.ok and theirs.ok:
            # More calls per second is less time for each, so of throughput the base's is the numerator.
            times = (item, one) if shown == "throughput" else (one, item)
            usual = CPU_NOISE if _case(match).device == "cpu" else GPU_NOISE
            result = statistics.compare(*times, threshold=threshold, level=level, comparisons=count, usual=usual)
        cases.append(_judged(_case(match), side, theirs, result, shown))
    return Compared(
        metric=shown,
        threshold=threshold,
        level=level,
        comparisons=count,
        cases=tuple(cases),
        differences=differ,
        problems=(*problems, *more),
    )


def _case(match: Match) -> Case:
    return next(runs.first.case for runs in reversed(match) if runs)


def _judged(
    case: Case, base: Side, candidate: Side, result: statistics.Comparison | None, metric: Metric
) -> ComparedCase:
    if result is None:
        sides = (("Base", base), ("Candidate", candidate))
        states = {WRONG: "wrong outputs"}
        said = [f"{name}: {states.get(side.state, side.state)}. {side.reason}" for name, side in sides if not side.ok]
        return ComparedCase(case=case, verdict="DID NOT RUN", reason=" ".join(said), base=base, candidate=candidate)
    shown, interval = result.ratio, result.interval
    if metric == "throughput":
        shown, interval = result.speedup, result.speedup_interval
    return ComparedCase(
        case=case,
        verdict=result.verdict,
        reason=result.reason,
        base=base,
        candidate=candidate,
        ratio=result.ratio,
        interval=result.interval,
        change=None if shown is None else shown - 1,
        change_interval=None if interval is None else Interval(interval.low - 1, interval.high - 1),
        between=max(base.processes, candidate.processes) > 1,
    )


def metric_of(word: str) -> Metric:
    """The metric that a word means, however it is spelled (``gpu-time``), or an :class:`InferlensError`."""
    spelled = word.strip().lower().replace("-", " ").replace("_", " ")
    found = next((metric for metric in METRICS if metric.lower() == spelled), None)
    if found is None:
        raise InferlensError(f"'{word}' cannot be compared.", expected=listing(METRICS))
    return found


def check(threshold: float, level: float) -> None:
    """Refuses a threshold or a level that is out of range, with an :class:`InferlensError`."""
    if not (threshold > 0 and math.isfinite(threshold)):
        raise InferlensError("The threshold must be above 0.", expected="such as 2%: a difference that matters")
    if not LEVELS[0] <= level <= LEVELS[1]:
        raise InferlensError("The level is out of range.", expected="50% to 99.99%", hint="95%")


def _records(given: Given) -> tuple[Sequence[Record], list[str]]:
    loaded = load_records([Path(given)]) if isinstance(given, (str, PathLike)) else given
    if not isinstance(loaded, Loaded):
        return loaded, []
    return loaded.records, loaded.problems


def read(runs: CaseRuns | None, metric: Metric, level: float) -> tuple[Side, list[Sequence[float]]]:
    """A side, and the samples of each of its processes; none of them if there is nothing to compare.

    One process of several that failed is enough for that: those that are left are not like it, and mostly faster.
    """
    if runs is None:
        return Side(state=MISSING, reason="There is no record of it."), []
    records: Sequence[Record] = runs.timed
    if metric == "throughput":  # which rounds of a race need not measure
        records = [record for record in runs.ran if record.budget.mode in ("both", metric)] or runs.ran
    processes: list[Sequence[float]] = [steady_samples(record, metric).for_median for record in records]
    found = estimate(processes, level) if all(processes) else None
    state, reason = _unable(runs)
    if not state and not (found and _LEAST < found.median < _MOST):
        state, reason = NOT_MEASURED, f"There are no valid samples of {metric}."
    side = Side(
        state=state or OK,
        reason=reason,
        device=device_name(runs.first),
        records=tuple(record.id for record in runs.records),
        created=max(record.created for record in runs.records),
        runs=runs.of_runs,
        machine_load=mean_load(map(record_load, records)),
    )
    if state or found is None:
        return side, []
    measured = {"median": found.median, "interval": found.interval, "notes": tuple(dict.fromkeys(_notes(runs)))}
    return replace(side, processes=len(processes), samples=sum(map(len, processes)), **measured), processes


def _unable(runs: CaseRuns) -> tuple[str, str]:
    """The state of a side of which a process failed or was wrong, and why; empty for others."""
    failed = [record for record in runs.records if record.status != OK]
    if failed:
        share = f" ({len(failed)} of {len(runs.records)} processes)" if runs.ran else ""
        hint = f" Try: {failed[0].hint}" if failed[0].hint else ""
        return failed[0].status, f"{failed[0].reason or 'No reason is known.'}{hint}{share}"
    wrong = [record.agreement for record in runs.records if not record.ranked and record.agreement]
    if wrong:
        why = wrong[0].reason or "they differ from the reference"
        return WRONG, f"{why[:1].upper()}{why[1:].rstrip('.')}."
    return "", ""


def _notes(runs: CaseRuns) -> Iterator[str]:
    for record in runs.ran:
        if record.agreement is None or record.agreement.agrees is None:
            why = record.agreement.reason if record.agreement else ""
            yield f"{UNCHECKED}: {why or 'nothing was there to compare them with'}"
    # Their codes alone: figures differ from case to case, and with them there would be a note for each.
    if codes := [
        note.code for note in notes.case_notes(runs) if note.level != "know" and note.code not in _STATE_CODES
    ]:
        yield f"{listing(list(dict.fromkeys(codes)))}; inferlens show --view notes says more."


def notes_of(**sides: Side) -> list[str]:
    """Notes of both sides, each with whose it is."""
    notes = dict.fromkeys(note for side in sides.values() for note in side.notes)
    whose = {note: " and ".join(name for name, side in sides.items() if note in side.notes) for note in notes}
    return [f"{names}: {note}" for note, names in whose.items()]


def pair_of(match: Match) -> tuple[Record, Record] | None:
    """The record of each side that speaks for it; ``None`` where one has nothing."""
    return (match[0].first, match[1].first) if match[0] and match[1] else None


def matches(base: Sequence[Record], candidate: Sequence[Record]) -> list[Match]:
    """The cases of both sides, in the order of the base, then those that only the candidate has.

    A side may hold records of several machines: each is compared with the other side's of the same one. What is left
    over of a case after that is one match if it is one run on each side, whatever their machines are. Raises
    InferlensError if the sides share a record that would be compared with itself, or no case at all.
    """
    mine, theirs = (_by_case(side) for side in (base, candidate))
    found = [
        match
        for digest in dict.fromkeys([*mine, *theirs])
        for match in _of_case(mine.get(digest, {}), theirs.get(digest, {}))
    ]
    pairs = [pair for match in found if (pair := pair_of(match))]
    if any(one.id == record.id for one, record in pairs):
        raise InferlensError(
            "Base and candidate are the same records.", expected="two folders, neither of them inside the other"
        )
    if not pairs:
        raise InferlensError(
            "No case is on both sides.",
            expected="the same model, backend, precision, batch, device, options, inputs and weights on both",
            hint="inferlens show BASE CANDIDATE, which sets different cases side by side",
        )
    return found


def _by_case(records: Sequence[Record]) -> dict[str, dict[str, CaseRuns]]:
    """Digest of the case, then machine, then its latest run there."""
    found: dict[str, dict[str, CaseRuns]] = {}
    for runs in latest(records):
        found.setdefault(runs.first.case.digest, {})[machine_name(runs.first.environment)] = runs
    return found


def _of_case(base: dict[str, CaseRuns], candidate: dict[str, CaseRuns]) -> list[Match]:
    """The same machine on both sides; then the only ones of a kind, with another card or driver; then the only ones."""
    matches: list[Match] = [(base[where], candidate[where]) for where in base if where in candidate]
    mine = [runs for where, runs in base.items() if where not in candidate]
    theirs = [runs for where, runs in candidate.items() if where not in base]
    for kind in {machine_kind(runs.first.environment) for runs in mine}:
        here, there = ([one for one in side if machine_kind(one.first.environment) == kind] for side in (mine, theirs))
        if len(here) == len(there) == 1:
            mine, theirs = [one for one in mine if one is not here[0]], [one for one in theirs if one is not there[0]]
            matches.append((here[0], there[0]))
    if len(mine) == len(theirs) == 1:
        return [*matches, (mine[0], theirs[0])]
    return [*matches, *((runs, None) for runs in mine), *((None, runs) for runs in theirs)]


# How two sides of a comparison differ besides what is compared, and which of that makes a comparison meaningless.
#
# *Unlike* is what the same software would be faster or slower by: the machine, how many processors may be used, the GPU
# with its power limit and its driver, the inputs. Everything else may well be the very subject of the comparison:
# libraries, Python, the revision, the weights, this program, how much was measured. It is said, and no more.

UNKNOWN = "unknown"
ABSENT = "not there"
POWER_LIMIT = "GPU power limit"
REVISION = "git revision"
# The last are variables by which a library chooses its processors, or by which every call waits for the GPU.
UNLIKE = frozenset((
    "CPU", "CPU cores", "CPU threads", "CPU governor", "GPUs", "driver", "GPU memory", POWER_LIMIT, "inputs",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY",
    "CUDA_LAUNCH_BLOCKING",
))  # fmt: skip
_TOLERANCE = 0.02  # systems and drivers keep a little memory to themselves, now more, now less, and round power limits

Pair = tuple[Record, Record]


class Difference(Struct, frozen=True):
    """One field in which base and candidate differ; ``unlike``: whether it makes the comparison meaningless."""

    field: str
    base: str
    candidate: str
    unlike: bool
    cases: int


def environment_differences(pairs: Sequence[Pair]) -> tuple[Difference, ...]:
    """What differs within the pairs of a base's and a candidate's record, what is unlike first."""
    counts = Counter(item for pair in pairs for item in _pair_differences(*pair))
    every = [Difference(*item, unlike=item[0] in UNLIKE, cases=count) for item, count in counts.items()]
    return tuple(sorted(every, key=lambda difference: not difference.unlike))


def differences_sentence(differences: Sequence[Difference]) -> str:
    """The differences of one pair, in a few words: ``torch 2.9.1 / 2.14.1``; what only one has comes last."""
    ordered = sorted(differences, key=lambda difference: ABSENT in (difference.base, difference.candidate))
    return ", ".join(
        one_line(f"{difference.field} {difference.base} / {difference.candidate}") for difference in ordered
    )


def conditions_error(unlike: Sequence[Difference], cases: int) -> InferlensError:
    """The error that names what is unlike."""
    lines = [one_line(f"{one.field}: {one.base} / {one.candidate}{case_count_label(one, cases)}") for one in unlike]
    return InferlensError(
        "\n  ".join(["Base and candidate were not measured under the same conditions (base / candidate):", *lines]),
        expected="the same machine, driver and inputs on both sides",
        hint="to measure both on one machine, or --unlike to compare all the same",
    )


def case_count_label(difference: Difference, cases: int) -> str:
    """How many of the cases a difference is about, in brackets; nothing if it is all of them."""
    return "" if difference.cases == cases else f" ({difference.cases} of {plural(cases, 'case')})"


def _pair_differences(base: Record, candidate: Record) -> Iterator[tuple[str, str, str]]:
    """Name and both texts of each field that differs."""
    ran = base.status == candidate.status == "ok"  # one that failed may not have got as far as its model
    one, other = (_fields(record, ran) for record in (base, candidate))
    for name in dict.fromkeys([*one, *other]):
        mine, theirs = one.get(name, ABSENT), other.get(name, ABSENT)
        if isinstance(mine, float) and isinstance(theirs, float):
            same = abs(mine - theirs) <= _TOLERANCE * max(mine, theirs)
        else:
            same = mine == theirs or (name == POWER_LIMIT and "" in (mine, theirs))  # old records do not tell it
        if not same:
            yield name, _text(name, mine), _text(name, theirs)


def _fields(record: Record, with_model: bool) -> dict[str, str | float]:
    """What may differ: texts, and sizes as numbers; empty where it is not known."""
    here, budget, model = record.environment, record.budget, record.model
    fields: dict[str, str | float] = {
        "CPU": here.cpu, "CPU cores": _number(here.cpu_cores), "CPU threads": _number(here.cpu_threads),
        "CPU governor": here.governor,
    }  # fmt: skip
    if record.case.device != "cpu":
        counts = Counter(gpu.name for gpu in here.gpus)
        cuda = f" (CUDA {here.cuda_driver})" if here.cuda_driver else ""
        fields["GPUs"] = ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())
        fields |= {"driver": here.driver + cuda, "GPU card": card_name(here)}
    # What may make a model faster or slower comes first: people see the first few.
    of_gpus = () if record.case.device != "cpu" else ("nvidia-", "triton")
    fields |= {REVISION: here.git_revision} if record.case.runs_own_code else {}
    fields |= {name: version for name, version in here.libraries.items() if not name.startswith(of_gpus)}
    fields |= {
        **here.variables, "Python": here.python, "system": here.system, "container": here.container,
        "inferlens": here.inferlens, "mode": budget.mode, "warm-up": _number(budget.warmup, "until steady"),
        "least warm-up": duration(budget.warmup_seconds), "iterations": _number(budget.iterations, "not fixed"),
        "seconds": "not fixed" if budget.seconds is None else duration(budget.seconds),
        "half-width": percent(budget.half_width),
        "max time": "by default" if budget.max_time is None else duration(budget.max_time),
        "memory": float(here.memory or 0) or "",
    }  # fmt: skip
    if record.case.device != "cpu":
        fields["GPU memory"] = float(next((gpu.memory or 0 for gpu in here.gpus), 0)) or ""
        fields[POWER_LIMIT] = _power_limit(record) or ""
    if with_model:
        fields |= {
            "inputs": ", ".join(map(str, model.inputs)), "parameters": _number(model.parameters),
            "weights": model.weights_sha256[:12] or model.weights,
            "clock": ", ".join(dict.fromkeys(measurement.clock for measurement in record.measurements)),
            "measured": "in turns" if record.facts.get(IN_TURNS) else "alone",
        }  # fmt: skip
    return fields


def _power_limit(record: Record) -> float | None:
    """That of the GPU which was watched, or of all GPUs where none was; ``None`` if these are not the same."""
    watched = record.machine.gpu_uuid if record.machine else ""
    limits = {gpu.power_limit for gpu in record.environment.gpus if not watched or gpu.uuid == watched}
    return limits.pop() if len(limits) == 1 else None


def _number(value: int | None, absent: str = "") -> str:
    return absent if value is None else f"{value:,}"


def _text(name: str, value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:g} W" if name == POWER_LIMIT else byte_count(value)
    return value or UNKNOWN
