"""Comparison of two sets of records: the cases that became faster or slower, and those that stopped working.

Cases match if the user asked for the same. On each side the latest run of a case counts, and its repeats are its
processes. A case with wrong outputs, or with a process that did not run to its end, has no verdict on its speed.

Differences of the environment are *unlike* if the same software would run at another speed: the machine, the number of
CPUs to use, the GPU with its power limit and driver, the inputs. They refuse a comparison. Libraries, Python, the
revision, the weights or the measurement may be the subject of the comparison, so their differences are only listed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

from msgspec import field
from msgspec.structs import replace

from inferlens.analysis import notes
from inferlens.analysis.interference import MachineLoad, mean_load, record_load
from inferlens.analysis.load import capacity_records, find_loads
from inferlens.analysis.samples import CaseRuns, device_name, latest, steady_samples
from inferlens.errors import InferlensError, one_line
from inferlens.record.display import Struct
from inferlens.record.record import IN_TURNS, Metric, Record, card_name, machine_name
from inferlens.record.store import LoadedRecords, load_records
from inferlens.spec.case import Case
from inferlens.stats import comparison as statistics
from inferlens.stats.comparison import CPU_NOISE, GPU_NOISE, estimate
from inferlens.stats.intervals import Interval
from inferlens.units import byte_count, duration, listing, percent, plural

ComparedMetric = Metric | Literal["capacity"]
CAPACITY: ComparedMetric = "capacity"  # of load tests, which are records with it as their throughput
RATES = ("throughput", CAPACITY)  # metrics for which more is better
METRICS: tuple[Metric, ...] = ("latency", "throughput", "GPU time")
LEVELS = (0.5, 0.9999)
Verdict = Literal["FASTER", "SAME", "SLOWER", "UNDECIDED", "DID NOT RUN"]
_EXIT_CODES: dict[Verdict, int] = {"SLOWER": 1, "DID NOT RUN": 4, "UNDECIDED": 3, "FASTER": 0, "SAME": 0}
RecordSource = str | PathLike[str] | Sequence[Record] | LoadedRecords
Match = tuple[CaseRuns | None, CaseRuns | None]  # the runs of one case in base and candidate

OK = "ok"
MISSING = "missing"
WRONG = "wrong"
NOT_MEASURED = "not measured"
UNCHECKED = "Outputs not checked"
_LEAST, _MOST = 1e-100, 1e100  # in seconds, or calls per second; ratios of others are no finite numbers
_STATE_CODES = (*notes.OUTCOME_LEVELS, "repeat-failed", "busy")  # codes of notes that the state expresses already

UNKNOWN = "unknown"
ABSENT = "not there"
POWER_LIMIT = "GPU power limit"
REVISION = "git revision"
# The last are variables by which a library chooses its CPUs, or by which every call waits for the GPU.
UNLIKE = frozenset((
    "CPU", "CPU cores", "CPU threads", "CPU governor", "GPUs", "driver", "GPU memory", POWER_LIMIT, "inputs",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY",
    "CUDA_LAUNCH_BLOCKING",
))  # fmt: skip
_TOLERANCE = 0.02  # systems reserve a varying amount of memory, and round power limits


def worst_exit_code(verdicts: Sequence[Verdict]) -> int:
    """Return 1 if one is slower; else 4 if one did not run; else 3 if one is undecided; else 0."""
    return next(_EXIT_CODES[verdict] for verdict in _EXIT_CODES if verdict in verdicts)


class Difference(Struct, frozen=True):
    """A field in which base and candidate differ; ``unlike``: whether it makes the comparison meaningless."""

    field: str
    base: str
    candidate: str
    unlike: bool
    cases: int

    @property
    def values(self) -> str:
        return one_line(f"{self.base} / {self.candidate}")


class Side(Struct, frozen=True, kw_only=True):
    """The measurements of a case on one side."""

    # ``ok``; or the status of a process that did not run to its end; or ``missing``, ``wrong`` (outputs) or ``not
    # measured`` (the metric). Only ``ok`` can be compared.
    state: str
    reason: str = ""
    device: str = ""  # name of the GPU, or of the CPU for cases on the CPU
    # The ids of its records, one for each process; ``created``: when the last of them started.
    records: tuple[str, ...] = ()
    created: str = ""
    runs: int = 1  # number of its runs; the newest counts
    processes: int = 0
    samples: int = 0
    median: float | None = None  # over its processes, in seconds, or calls per second; ``None`` unless ``ok``
    interval: Interval | None = None  # of ``median``, at the comparison's confidence
    notes: tuple[str, ...] = ()
    machine_load: MachineLoad = MachineLoad()  # use of the machine by other programs meanwhile

    @property
    def ok(self) -> bool:
        return self.state == OK


class CaseComparison(Struct, frozen=True, kw_only=True):
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
    replicated: bool = field(default=False, name="between")  # whether a side has several processes

    @property
    def comparable(self) -> bool:
        return self.base.ok and self.candidate.ok

    @property
    def measured_once(self) -> bool:
        """Return whether each side has one process, so that the variation between processes is unknown."""
        return self.base.processes == self.candidate.processes == 1

    def likely_verdict(self, threshold: float) -> str:
        """Return the likeliest verdict if none is sure: ``slower``, ``faster`` or ``the same`` within a threshold."""
        ratio = self.ratio or 1.0
        return "slower" if ratio > 1 + threshold else "faster" if ratio < 1 / (1 + threshold) else "the same"

    @property
    def outputs_unchecked(self) -> bool:
        return any(note.startswith(UNCHECKED) for side in (self.base, self.candidate) for note in side.notes)

    @property
    def ran_on_neither(self) -> bool:
        """Return whether no side can be compared, which is no news about the candidate."""
        return not self.base.ok and not self.candidate.ok


class RecordComparison(Struct, frozen=True, kw_only=True):
    """All cases of two sets of records."""

    metric: ComparedMetric
    threshold: float  # the smallest relative difference that matters
    level: float  # confidence that all verdicts together are right
    comparisons: int  # number of comparable cases; they share the error 1 - ``level``
    cases: tuple[CaseComparison, ...]  # in the order of the base, then those of the candidate only
    differences: tuple[Difference, ...] = ()
    problems: tuple[str, ...] = ()

    def with_verdict(self, verdict: Verdict) -> tuple[CaseComparison, ...]:
        return tuple(case for case in self.cases if case.verdict == verdict)

    @property
    def loads(self) -> dict[str, MachineLoad]:
        """Use of the machine by other programs during the base and the candidate."""
        sides = ("base", "candidate")
        return {name: mean_load(getattr(case, name).machine_load for case in self.cases) for name in sides}

    @property
    def machine_load(self) -> MachineLoad:
        """The load of both sides; busy if one of them is."""
        return mean_load(self.loads.values())

    @property
    def measured_once(self) -> bool:
        return all(case.measured_once for case in self.cases if case.comparable)

    @property
    def common_cases(self) -> int:
        return sum(MISSING not in (case.base.state, case.candidate.state) for case in self.cases)

    @property
    def exit_code(self) -> int:
        """The code of the worst verdict. Cases that ran on neither side do not count if others ran on both."""
        verdicts: list[Verdict] = [case.verdict for case in self.cases if not case.ran_on_neither]
        return worst_exit_code(verdicts or ["DID NOT RUN"])


def compare(
    base: RecordSource,
    candidate: RecordSource,
    *,
    metric: str = "latency",
    threshold: float = 0.02,
    level: float = 0.95,
    unlike: bool = False,
) -> RecordComparison:
    """Return the verdict on each case of ``candidate`` against the same case of ``base``.

    Args:
        base: a folder with records, at any depth, or a record file, or records; or a folder of a load test.
        candidate: as ``base``.
        metric: ``latency``, ``throughput``, ``GPU time``, or ``capacity`` of load tests.
        threshold: the smallest relative difference that matters.
        level: confidence that all verdicts together are right, from 0.5 to 0.9999.
        unlike: whether to compare although machines, drivers or inputs differ.

    Raises InferlensError if there is nothing to compare, the machines differ, or an argument is out of range.
    """
    if isinstance(base, (str, PathLike)) and isinstance(candidate, (str, PathLike)):
        paths = Path(base), Path(candidate)
        if metric == CAPACITY or all(find_loads([path]) for path in paths):
            metric, (base, candidate) = CAPACITY, capacity_records(*paths)
    parsed_metric = CAPACITY if metric == CAPACITY else parse_metric(metric)
    check_limits(threshold, level)
    (base_records, problems), (candidate_records, more) = _load(base), _load(candidate)
    matches = match_cases(base_records, candidate_records)
    pairs = [(before.first, after.first) for before, after in matches if before and after]
    differences = environment_differences(pairs)
    refused = [difference for difference in differences if difference.unlike]
    if refused and not unlike:
        raise conditions_error(refused, len(pairs))
    measured: Metric = "throughput" if parsed_metric == "capacity" else parsed_metric
    sides = [[read_side(runs, measured, level) for runs in match] for match in matches]
    count = sum(before.ok and after.ok for (before, _), (after, _) in sides)
    cases = []
    for match, ((before, base_processes), (after, processes)) in zip(matches, sides, strict=True):
        case = next(runs.first.case for runs in reversed(match) if runs)
        result = None
        if before.ok and after.ok:
            # More calls per second take less time each.
            times = (processes, base_processes) if parsed_metric in RATES else (base_processes, processes)
            usual = CPU_NOISE if case.device == "cpu" else GPU_NOISE
            result = statistics.compare(*times, threshold=threshold, level=level, comparisons=count, usual=usual)
        cases.append(_case_comparison(case, before, after, result, parsed_metric))
    return RecordComparison(
        metric=parsed_metric, threshold=threshold, level=level, comparisons=count, cases=tuple(cases),
        differences=differences, problems=(*problems, *more),
    )  # fmt: skip


def _case_comparison(
    case: Case, base: Side, candidate: Side, result: statistics.Comparison | None, metric: ComparedMetric
) -> CaseComparison:
    if result is None:
        sides = [(name, side) for name, side in (("Base", base), ("Candidate", candidate)) if not side.ok]
        states = {WRONG: "wrong outputs"}
        reason = " ".join(f"{name}: {states.get(side.state, side.state)}. {side.reason}" for name, side in sides)
        return CaseComparison(case=case, verdict="DID NOT RUN", reason=reason, base=base, candidate=candidate)
    quotient, interval = result.ratio, result.interval
    if metric in RATES:
        quotient, interval = result.speedup, result.speedup_interval
    return CaseComparison(
        case=case, verdict=result.verdict, reason=result.reason, base=base, candidate=candidate,
        ratio=result.ratio, interval=result.interval, change=None if quotient is None else quotient - 1,
        change_interval=None if interval is None else Interval(interval.low - 1, interval.high - 1),
        replicated=max(base.processes, candidate.processes) > 1,
    )  # fmt: skip


def parse_metric(text: str) -> Metric:
    """Return the metric of that name in any spelling (``gpu-time``), or raise an :class:`InferlensError`."""
    name = text.strip().lower().replace("-", " ").replace("_", " ")
    metric = next((metric for metric in METRICS if metric.lower() == name), None)
    if metric is None:
        raise InferlensError(f"'{text}' cannot be compared.", expected=listing(METRICS))
    return metric


def check_limits(threshold: float, level: float) -> None:
    """Raise an :class:`InferlensError` if a threshold or a level is out of range."""
    if not (threshold > 0 and math.isfinite(threshold)):
        raise InferlensError("The threshold must be above 0.", expected="such as 2%: a difference that matters")
    if not LEVELS[0] <= level <= LEVELS[1]:
        raise InferlensError("The level is out of range.", expected="50% to 99.99%", hint="95%")


def _load(source: RecordSource) -> tuple[Sequence[Record], list[str]]:
    loaded = load_records([Path(source)]) if isinstance(source, (str, PathLike)) else source
    return (loaded.records, loaded.problems) if isinstance(loaded, LoadedRecords) else (loaded, [])


def read_side(runs: CaseRuns | None, metric: Metric, level: float) -> tuple[Side, list[Sequence[float]]]:
    """Return a side, and the samples of each of its processes; none if it cannot be compared.

    One failed process of several is enough for that: the others differ from it, and are mostly faster.
    """
    if runs is None:
        return Side(state=MISSING, reason="There is no record of it."), []
    records: Sequence[Record] = runs.timed
    if metric == "throughput":  # rounds of a race need not measure it
        records = [record for record in runs.ran if record.budget.mode in ("both", metric)] or runs.ran
    processes: list[Sequence[float]] = [steady_samples(record, metric).for_median for record in records]
    result = estimate(processes, level) if all(processes) else None
    state, reason = _failure(runs)
    if not state and not (result and _LEAST < result.median < _MOST):
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
    if state or result is None:
        return side, []
    side = replace(
        side, processes=len(processes), samples=sum(map(len, processes)), median=result.median,
        interval=result.interval, notes=tuple(dict.fromkeys(_side_notes(runs))),
    )  # fmt: skip
    return side, processes


def _failure(runs: CaseRuns) -> tuple[str, str]:
    """Return the state and the reason of a side with a failed or wrong process; empty for others."""
    failed = [record for record in runs.records if record.status != OK]
    if failed:
        share = f" ({len(failed)} of {len(runs.records)} processes)" if runs.ran else ""
        hint = f" Try: {failed[0].hint}" if failed[0].hint else ""
        return failed[0].status, f"{failed[0].reason or 'No reason is known.'}{hint}{share}"
    wrong = [record.agreement for record in runs.records if not record.ranked and record.agreement]
    if wrong:
        reason = wrong[0].reason or "they differ from the reference"
        return WRONG, f"{reason[:1].upper()}{reason[1:].rstrip('.')}."
    return "", ""


def _side_notes(runs: CaseRuns) -> Iterator[str]:
    for record in runs.ran:
        if record.agreement is None or record.agreement.agrees is None:
            reason = record.agreement.reason if record.agreement else ""
            yield f"{UNCHECKED}: {reason or 'nothing was there to compare them with'}"
    # Notes are compared by their codes, because their figures differ from case to case.
    codes = [note.code for note in notes.case_notes(runs) if note.level != "know" and note.code not in _STATE_CODES]
    if codes:
        yield f"{listing(list(dict.fromkeys(codes)))}; inferlens show --view notes says more."


def side_notes(**sides: Iterable[str]) -> list[str]:
    """Return the notes of both sides, each with the names of the sides that have it."""
    owners: dict[str, list[str]] = {}
    for name, texts in sides.items():
        for text in dict.fromkeys(texts):
            owners.setdefault(text, []).append(name)
    return [f"{listing(names)}: {text}" for text, names in owners.items()]


def match_cases(base: Sequence[Record], candidate: Sequence[Record]) -> list[Match]:
    """Return the cases of both sides, in the order of the base, then those of the candidate only.

    A side may hold records of several machines: each is compared with the other side's records of the same machine. If
    one run of a case remains on each side, they match whatever their machines are. Raises InferlensError if the sides
    share a record, or have no common case.
    """
    base_cases, candidate_cases = _group_by_case(base), _group_by_case(candidate)
    matches = [
        match
        for digest in base_cases | candidate_cases
        for match in _match_machines(base_cases.get(digest, {}), candidate_cases.get(digest, {}))
    ]
    pairs = [(before, after) for before, after in matches if before and after]
    if any(before.first.id == after.first.id for before, after in pairs):
        expected = "two folders, neither of them inside the other"
        raise InferlensError("Base and candidate are the same records.", expected=expected)
    if not pairs:
        raise InferlensError(
            "No case is on both sides.",
            expected="the same model, backend, precision, batch, device, options, inputs and weights on both",
            hint="inferlens show BASE CANDIDATE, which sets different cases side by side",
        )
    return matches


def _group_by_case(records: Sequence[Record]) -> dict[str, dict[str, CaseRuns]]:
    """Return the last runs of each case by the case's digest, then by the name of the machine."""
    cases: dict[str, dict[str, CaseRuns]] = {}
    for runs in latest(records):
        cases.setdefault(runs.first.case.digest, {})[machine_name(runs.first.environment)] = runs
    return cases


def _match_machines(base: dict[str, CaseRuns], candidate: dict[str, CaseRuns]) -> list[Match]:
    """Match the runs on the same machine. If one run remains on each side, match these, too."""
    matches: list[Match] = [(base[name], candidate[name]) for name in base if name in candidate]
    before = [runs for name, runs in base.items() if name not in candidate]
    after = [runs for name, runs in candidate.items() if name not in base]
    if len(before) == len(after) == 1:
        return [*matches, (before[0], after[0])]
    return [*matches, *((runs, None) for runs in before), *((None, runs) for runs in after)]


def environment_differences(pairs: Sequence[tuple[Record, Record]]) -> tuple[Difference, ...]:
    """Return the differences within pairs of a base's and a candidate's record, the unlike ones first."""
    counts = Counter(difference for pair in pairs for difference in _pair_differences(*pair))
    differences = [Difference(*values, unlike=values[0] in UNLIKE, cases=count) for values, count in counts.items()]
    return tuple(sorted(differences, key=lambda difference: not difference.unlike))


def differences_sentence(differences: Sequence[Difference]) -> str:
    """Return the differences of one pair: ``torch 2.9.1 / 2.14.1``; fields that only one side has come last."""
    ordered = sorted(differences, key=lambda difference: ABSENT in (difference.base, difference.candidate))
    return ", ".join(f"{difference.field} {difference.values}" for difference in ordered)


def conditions_error(unlike: Sequence[Difference], cases: int) -> InferlensError:
    lines = [f"{difference.field}: {difference.values}{case_count_label(difference, cases)}" for difference in unlike]
    return InferlensError(
        "\n  ".join(["Base and candidate were not measured under the same conditions (base / candidate):", *lines]),
        expected="the same machine, driver and inputs on both sides",
        hint="to measure both on one machine, or --unlike to compare all the same",
    )


def case_count_label(difference: Difference, cases: int) -> str:
    """Return the number of cases with a difference, in brackets; empty if all have it."""
    return "" if difference.cases == cases else f" ({difference.cases} of {plural(cases, 'case')})"


def _pair_differences(base: Record, candidate: Record) -> Iterator[tuple[str, str, str]]:
    """Yield the name and both values of each field that differs."""
    ran = base.status == candidate.status == "ok"  # a failed process may not have loaded its model
    before, after = (_fields(record, with_model=ran) for record in (base, candidate))
    for name in dict.fromkeys([*before, *after]):
        first, second = before.get(name, ABSENT), after.get(name, ABSENT)
        if isinstance(first, float) and isinstance(second, float):
            same = abs(first - second) <= _TOLERANCE * max(first, second)
        else:
            same = first == second or (name == POWER_LIMIT and "" in (first, second))  # old records lack it
        if not same:
            yield name, _text(name, first), _text(name, second)


def _fields(record: Record, *, with_model: bool) -> dict[str, str | float]:
    """Return the fields to compare: texts, and sizes as numbers; empty if unknown."""
    environment, budget, model = record.environment, record.budget, record.model
    on_gpu = record.case.device != "cpu"
    fields: dict[str, str | float] = {
        "CPU": environment.cpu, "CPU cores": _number(environment.cpu_cores),
        "CPU threads": _number(environment.cpu_threads), "CPU governor": environment.governor,
    }  # fmt: skip
    if on_gpu:
        counts = Counter(gpu.name for gpu in environment.gpus)
        cuda = f" (CUDA {environment.cuda_driver})" if environment.cuda_driver else ""
        fields["GPUs"] = ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())
        fields |= {"driver": environment.driver + cuda, "GPU card": card_name(environment)}
    # People see the first few: the fields that may make a model faster or slower.
    gpu_libraries = () if on_gpu else ("nvidia-", "triton")
    fields |= {REVISION: environment.git_revision} if record.case.runs_own_code else {}
    fields |= {name: version for name, version in environment.libraries.items() if not name.startswith(gpu_libraries)}
    fields |= {
        **environment.variables, "Python": environment.python, "system": environment.system,
        "container": environment.container, "inferlens": environment.inferlens, "mode": budget.mode,
        "warm-up": _number(budget.warmup, "until steady"), "least warm-up": duration(budget.warmup_seconds),
        "iterations": _number(budget.iterations, "not fixed"),
        "seconds": "not fixed" if budget.seconds is None else duration(budget.seconds),
        "half-width": percent(budget.half_width),
        "max time": "by default" if budget.max_time is None else duration(budget.max_time),
        "memory": float(environment.memory or 0) or "",
    }  # fmt: skip
    if on_gpu:
        fields["GPU memory"] = float(next((gpu.memory or 0 for gpu in environment.gpus), 0)) or ""
        limits = {gpu.power_limit for gpu in environment.gpus}
        fields[POWER_LIMIT] = (limits.pop() or "") if len(limits) == 1 else ""
    if with_model:
        fields |= {
            "inputs": ", ".join(map(str, model.inputs)), "parameters": _number(model.parameters),
            "weights": model.weights_sha256[:12] or model.weights,
            "clock": ", ".join(dict.fromkeys(measurement.clock for measurement in record.measurements)),
            "measured": "in turns" if record.facts.get(IN_TURNS) else "alone",
        }  # fmt: skip
    return fields


def _number(value: int | None, absent: str = "") -> str:
    return absent if value is None else f"{value:,}"


def _text(name: str, value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:g} W" if name == POWER_LIMIT else byte_count(value)
    return value or UNKNOWN
