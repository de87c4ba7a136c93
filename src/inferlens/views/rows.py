"""Rows: one :class:`Row` per case with everything that tables and charts show, computed once.

Rows hold measured numbers, never text. Rates come from windows of back-to-back calls, never from 1 / latency.
Speed-ups relate rows of one *comparison*: model, inputs, batch and machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Literal

from msgspec import field
from msgspec.structs import replace

from inferlens.analysis.interference import MachineLoad
from inferlens.analysis.measures import bound_by, build_seconds, case_numbers, device_peak, host_peak
from inferlens.analysis.notes import Note, case_notes, small_quantized_share, sort_notes
from inferlens.analysis.race import FinalsAim, Race, race
from inferlens.analysis.samples import CaseRuns, device_name, group_by, latest
from inferlens.record.display import Struct
from inferlens.record.record import IN_TURNS, Record, card_name, machine_name
from inferlens.spec.case import TensorSpec, bare, shown_together, sizes_of, with_batch
from inferlens.spec.dimensions import with_names
from inferlens.spec.plan import ab_words, command, label_words, reference_rank, unknown
from inferlens.stats.intervals import ends
from inferlens.units import duration, moment
from inferlens.views.table import plain, profile_command

PARTLY = "(partly)"  # behind a precision: less than half of the multiply-adds are in it
# Words for outputs that are not wrong, but deficient, by note code.
OUTPUT_WORDS = {
    "at-chance": "accuracy meaningless", "random-calibration": "accuracy meaningless", "less-accurate": "less accurate",
    "random-outputs": "random", "keeps-state": "keeps state",
}  # fmt: skip
RowStanding = Literal["", "fastest", "equal", "likeliest", "open", "slower", "none"]


class Row(Struct, frozen=True, kw_only=True):
    """One case as shown; times in seconds, sizes in bytes, ``None`` for unknown or uncertain values.

    ``NAME_low`` and ``NAME_high`` are the 95 % interval of the value before them, over processes if there are several.

    Attributes:
        name: distinct name within the table: backend, precision and further differences.
        machine: key of the machine; rows of two machines are never compared.
        device_name: the GPU, or the CPU for cases on it; longer if machines share the name.
        hint: help for a failed case; for the likeliest, the command that compares it with the next.
        inputs: the actual inputs; ``batch`` is the number of items per call, ``sizes`` are other named dimensions, and
            ``form`` has their names in place of sizes, such as ``x={batch}x{width}:int64``.
        runs: number of runs of the case; this is the newest.
        run: begin of the run in tables per run; rows of two runs are not compared.
        prepared: the range of sizes, if the case was prepared for more than the measured ones.
        io: where a call begins and ends; ``call_mode``: further conditions, ``cold``, ``rotating``.
        card: the first characters of the GPU's UUID.
        processes: number of processes; ``between``: whether intervals cover their differences.
        samples: number of latency samples in use; ``left_out`` were disturbed or not steady.
        median: with several processes, the geometric mean of their medians.
        h2d, compute, d2h: medians of the parts of the GPU time, if a call begins and ends on the host.
        iterations_per_second: calls per second, the median of the throughput windows; items are calls x batch.
        separate_rate: whether throughput comes from other processes than latency.
        in_flight: calls in flight during throughput; ``None``: limited by the queue alone.
        bound: what a call on a GPU waits for most: ``host``, ``copies`` or ``GPU``.
        speedup: the reference's median latency over this one's, or the ratio of rates without latencies.
        sure: whether the speed-up's interval covers differences between processes.
        metric: ``top-1``, ``agreement`` or the user's function; ``accuracy_share``: whether ``accuracy`` is a share of
            the samples. ``drop``: distance below fp32, relative unless the metric is a share.
        error: relative L2 error of the outputs; ``agrees`` is ``None`` if they could not be checked.
        build: seconds of export and build; ``cached`` if an earlier build was used.
        host_peak, device_peak: maximum over its processes; ``energy``: joules per item.
        ranked: whether the row may win: it ran, and its outputs are not wrong.
        place: rank by speed within the comparison.
        standing: ``fastest``; ``equal``: as fast; ``likeliest`` among ``open`` ones, which may be faster; ``slower``.
        fastest: whether it is fastest or equal, or likeliest in an open race.
        chance: for the first, the probability that no other is faster by more than the threshold.
        behind: its time over that of the first.
        ended: end of its last record; ``command``: key of the command that measured it.
        rounds: number of interleaved rounds; ``threshold``: differences below it do not matter.
        cpus: CPU threads; ``profile``: the command that profiles the case.
        machine_load: load by other programs.
        notes: notes on the row, the most important first.
    """

    id: str
    folder: str
    created: str
    ended: str
    command: str
    model: str
    name: str
    label: str
    backend: str
    precision: str
    batch: int | None
    sizes: dict[str, int]
    device: str
    device_name: str
    machine: str
    threads: int | None
    options: str
    inputs: str
    form: str
    prepared: str
    io: str
    status: str
    reason: str
    hint: str = field(name="cure")
    card: str = ""
    call_mode: str = field(default="", name="manner")
    runs: int = 1
    run: str = ""
    processes: int = 1
    between: bool = False
    samples: int = 0
    left_out: int = 0
    warmup: int | None = None
    mean: float | None = None
    median: float | None = None
    median_low: float | None = None
    median_high: float | None = None
    p5: float | None = None
    p95: float | None = None
    p99: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    deviation: float | None = None
    mean_low: float | None = None
    mean_high: float | None = None
    p95_low: float | None = None
    p95_high: float | None = None
    p99_low: float | None = None
    p99_high: float | None = None
    gpu_time: float | None = None
    enqueue: float | None = None
    h2d: float | None = None
    compute: float | None = None
    d2h: float | None = None
    iterations_per_second: float | None = None
    iterations_low: float | None = None
    iterations_high: float | None = None
    items_per_second: float | None = None
    separate_rate: bool = False
    in_flight: int | None = None
    bound: str = ""
    reference: str = ""
    is_reference: bool = False
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    sure: bool = False
    metric: str = ""
    accuracy: float | None = None
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    accuracy_share: bool = False
    top5: float | None = None
    drop: float | None = None
    drop_low: float | None = None
    drop_high: float | None = None
    error: float | None = None
    agrees: bool | None = None
    agreement_reason: str = ""
    load: float | None = None
    build: float | None = None
    cached: bool = False
    first_inference: float | None = None
    host_peak: int | None = None
    device_peak: int | None = None
    energy: float | None = None
    energy_low: float | None = None
    energy_high: float | None = None
    ranked: bool = False
    place: int | None = None
    standing: RowStanding = ""
    fastest: bool = False
    chance: float | None = None
    behind: float | None = None
    behind_low: float | None = None
    behind_high: float | None = None
    rounds: int = 0
    threshold: float = 0.02
    reference_id: str = ""
    cpus: int | None = None
    profile: str = ""
    machine_load: MachineLoad = MachineLoad()
    notes: tuple[Note, ...] = ()

    def __repr__(self) -> str:
        return f"<Row of {self.name}: {self.status if self.median is None else duration(self.median)}>"

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def outputs(self) -> str:
        """Return the state of the outputs in a word or two."""
        codes = {note.code for note in self.notes}
        words = [] if self.agrees is False else [word for code, word in OUTPUT_WORDS.items() if code in codes]
        words += ["state lost"] * ("state-lost" in codes)
        return next(iter(words), {True: "right", False: "wrong", None: "unchecked"}[self.agrees])

    @property
    def library(self) -> str:
        return self.backend.partition(":")[0]

    @property
    def way(self) -> str:
        """Return the name without its precision."""
        return plain(self.name.replace(f"{self.backend} {self.precision}", self.backend, 1))

    @property
    def table(self) -> tuple[str, str, str, str]:
        """Return the key of a table: model, machine, inputs without named sizes, and run."""
        return self.model, self.machine, self.form, self.run

    @property
    def comparison(self) -> tuple[str, str, str, int | None, str, str, str]:
        """Return the key of a comparison."""
        return self.model, self.machine, self.inputs, self.batch, self.io, self.call_mode, self.run

    @property
    def dimensions(self) -> dict[str, int | None]:
        """Return the batch and all sizes by name."""
        return {"batch": self.batch, **self.sizes}

    def inputs_without(self, names: Collection[str]) -> str:
        """Return the inputs with names in place of sizes, ``N`` for the batch, and without bounds of values."""
        sizes = {name: str(size) for name, size in self.dimensions.items() if name not in names}
        form = re.sub(r"(:u?int\d+):-?\d+\.\.-?\d+", r"\1", self.form)
        return re.sub(r"\{(.+?)\}", lambda name: {"batch": "N", **sizes}.get(name[1], name[1]), form)

    @property
    def seconds_per_call(self) -> float | None:
        """Return the median latency, or one over the rate. Rows are sorted by it."""
        rate_only = self.median is None and self.iterations_per_second
        return 1 / rate_only if rate_only else self.median


RowKey = tuple[str, str]  # the id and the machine of a row


def runs_by_row(records: Sequence[Record]) -> dict[RowKey, CaseRuns]:
    """Return the latest run of each case by the id and the machine of its row."""
    return {(run.first.id, machine_name(run.first.environment)): run for run in latest(records)}


def group_rows(rows: Sequence[Row], key: str) -> list[list[Row]]:
    """Group rows by ``table`` or ``comparison`` in order."""
    return list(group_by(rows, attrgetter(key)).values())


def varying_sizes(rows: Iterable[Row]) -> list[str]:
    """Return the names of the dimensions in which rows differ, the batch first."""
    dimensions = [row.dimensions for row in rows]
    names = dict.fromkeys(name for sizes in dimensions for name in sizes)
    return [name for name in names if len({sizes.get(name) for sizes in dimensions}) > 1]


def sizes_text(row: Row, names: Iterable[str]) -> str:
    """Return the sizes of a row in words, such as ``batch 8, sequence_length 128``."""
    sizes = row.dimensions
    return plain(", ".join(f"{name} {sizes[name]}" for name in names if sizes.get(name) is not None))


def command_seconds(table: Sequence[Row]) -> float | None:
    """Return the duration of a common command, from the first start to the last record."""
    times = [moment(time) for row in table for time in (row.created, row.ended)]
    moments = [time for time in times if time is not None]
    one_command = len({row.command for row in table}) == 1
    return max(moments) - min(moments) if one_command and len(moments) == len(times) else None


def row_names(table: Sequence[Row]) -> dict[str, str]:
    """Return the name of each row by its id: without the precision where all share it."""
    shared = len({row.precision for row in table}) == 1
    return {row.id: row.way if shared else plain(row.name) for row in table}


def rows(records: Sequence[Record], reference: str | None = None, aim: FinalsAim | None = None) -> list[Row]:
    """Return rows of the latest run of each case, by comparison: the fastest first, failures last.

    Args:
        records: in any order. The last run of a case on a machine counts, with all its processes.
        reference: words that name the reference, such as ``openvino fp16``; ``None`` is the plain row of the backend
            that outputs were checked against.
        aim: the objective of the comparison; :func:`inferlens.analysis.race.race` describes it.

    Raises:
        InferlensError: if ``reference`` names no row.
    """
    runs = runs_by_row(records)
    named = _bare_rows(list(runs.values()))
    models, tables = [row.model for row in named], [row.table for row in named]

    def order(comparison: Sequence[Row]) -> tuple[int, int, list[int]]:
        row = comparison[0]
        return models.index(row.model), tables.index(row.table), [size or 0 for size in row.dimensions.values()]

    if reference and named and not any(matches_words(row, reference) for row in named):
        raise unknown(reference, [row.label for row in named])
    result: list[Row] = []
    for comparison in sorted(group_rows(named, "comparison"), key=order):  # in turn: statistics of samples are cached
        measured = [replace(row, **case_numbers(runs[row.id, row.machine], row.batch)) for row in comparison]
        for row in rank_rows(measured, runs, reference, aim):
            notes = sort_notes((*case_notes(runs[row.id, row.machine]), *row.notes))
            result.append(replace(row, notes=notes))
    return result


def _bare_rows(runs: Sequence[CaseRuns]) -> list[Row]:
    """Return a row for each run with a distinct name: device, range of sizes, or a number.

    Cases that failed early take their inputs from another case of the model, or from the request.
    """
    inputs_by_case: dict[object, tuple[TensorSpec, ...]] = {}
    devices: dict[object, set[str]] = {}
    for run in runs:
        case = run.first.case
        if run.first.model.inputs:
            inputs_by_case[case.model, case.batch, case.inputs] = run.first.model.inputs
        if run.ran:
            devices.setdefault((case.model, machine_name(run.first.environment)), set()).add(case.device)
    result = []
    for run, shown in zip(runs, shown_together([run.first.case for run in runs]), strict=True):
        case = run.first.case
        only_device = devices.get((case.model, machine_name(run.first.environment))) == {case.device}
        omitted = only_device or case.device in (case.backend, case.variant)
        inputs = run.first.model.inputs or inputs_by_case.get((case.model, case.batch, case.inputs))
        if not inputs:
            fixed = (TensorSpec(spec.name, spec.shape, spec.dtype, spec.low, spec.high) for spec in case.inputs)
            inputs = with_batch(tuple(fixed), case.batch)
        inputs, _ = with_names(inputs)
        result.append(_row(run, inputs, shown.words("batch", *case.sizes, *["device"] * omitted)))
    return _distinguish_names(_distinguish_machines(result))


def _distinguish_machines(rows: Sequence[Row]) -> list[Row]:
    """Add the card to device names that several machines have, or name the whole machine."""
    names: dict[str, dict[str, str]] = {}
    for row in rows:
        names.setdefault(row.device_name, {})[row.machine] = f"{row.device_name} {row.card}".strip()
    result = []
    for row in rows:
        machines = names[row.device_name]
        name = machines[row.machine] if len({*machines.values()}) == len(machines) else row.machine
        result.append(replace(row, device_name=name) if len(machines) > 1 else row)
    return result


def _distinguish_names(rows: Sequence[Row]) -> list[Row]:
    """Add ranges of sizes and numbers to names that would be equal."""
    ranges: dict[object, set[str]] = {}
    for row in rows:
        ranges.setdefault(row.comparison, set()).add(row.prepared)
    counts: dict[object, int] = {}
    named = []
    for row in rows:
        name = f"{row.name} {row.prepared}".strip() if len(ranges[row.comparison]) > 1 else row.name
        number = counts[row.comparison, name] = counts.get((row.comparison, name), 0) + 1
        named.append(replace(row, name=f"{name} ({number})" if number > 1 else name))
    return named


def _row(run: CaseRuns, inputs: tuple[TensorSpec, ...], words: list[str]) -> Row:
    """Return the row of one run; ``words`` form its name."""
    record = run.first
    case, agreement = record.case, run.worst_agreement
    lowered = any(warning.code == "lower-precision" for record in run.records for warning in record.warnings)
    partly = small_quantized_share(record) is not None
    return Row(
        id=record.id,
        folder=case.folder,
        created=record.created,
        ended=max(record.ended for record in run.records) if all(record.ended for record in run.records) else "",
        command=record.run,
        model=case.model,
        name=" ".join([*words[:2], *["(TF32)"] * lowered, *[PARTLY] * partly, *words[2:]]),
        label=case.label,
        backend=case.backend_label,
        precision=case.precision,
        batch=inputs[0].shape[0] if inputs and inputs[0].shape else case.batch,
        sizes=sizes_of(inputs),
        device=case.device,
        device_name=device_name(record),
        machine=machine_name(record.environment),
        card=card_name(record.environment) if case.device != "cpu" else "",
        threads=case.threads,
        cpus=record.facts.get("threads") or record.environment.cpu_threads,
        threshold=record.budget.threshold,
        options=case.options_label,
        profile=profile_command(case, gpu=bool(record.environment.gpus)),
        inputs=", ".join(map(str, inputs)),
        form=", ".join(_form(spec, inputs[0].shape[0] if inputs[0].shape else None) for spec in inputs),
        prepared=", ".join(_range(spec) for spec in inputs if spec.dynamic),
        io=case.io,
        call_mode=" ".join(word for word, on in (("cold", case.cold), ("rotating", case.rotate)) if on),
        runs=run.of_runs,
        processes=len(run.ran),
        status=record.status,
        reason=record.reason,
        hint=record.hint,
        error=agreement.rel_l2 if agreement else None,
        agrees=agreement.agrees if agreement else None,
        agreement_reason=agreement.reason if agreement else "",
        load=record.phase_seconds("load"),
        build=build_seconds(record),
        cached=any(phase.note == "cached" for phase in record.phases),
        first_inference=record.phase_seconds("first inference"),
        host_peak=host_peak(run),
        device_peak=device_peak(run),
        ranked=record.ranked and (agreement is None or agreement.agrees is not False),
        bound=bound_by(record),
    )


def _form(spec: TensorSpec, batch: int | None) -> str:
    """Return an input with names for sizes, such as ``x={batch}x3x{image_size}x{image_size}:float32``."""
    named = [f"{{{name}}}" if name else str(size) for name, size in zip(spec.names, spec.shape, strict=True)]
    named[:1] = ["{batch}" if size == batch else str(size) for size in spec.shape[:1]]
    return f"{spec.name}={'x'.join(named)}{str(spec)[len(spec.name) + len('x'.join(map(str, spec.shape))) + 1 :]}"


def _range(spec: TensorSpec) -> str:
    """Return the sizes that a model was prepared for, such as ``x=1..16x3x224x224 opt 2x3x224x224``."""
    least, _, most = spec.profile
    sizes = "x".join(str(low) if low == high else f"{low}..{high}" for low, high in zip(least, most, strict=True))
    return f"{spec.name}={sizes}" + (f" opt {'x'.join(map(str, spec.best))}" if spec.best else "")


# The reference is the plainest row of the backend that outputs were checked against: fp32, no options, the library's
# number of threads. A device without one takes another device's. Words may select another row.


def rank_rows(
    rows: Sequence[Row], runs: Mapping[RowKey, CaseRuns], reference: str | None, aim: FinalsAim | None = None
) -> list[Row]:
    """Return the rows of a comparison with speed-ups: the reference, ranked rows, wrong ones, failures.

    ``reference`` selects the reference if it matches a row.
    """
    among = race({row.id: runs[row.id, row.machine] for row in rows}, aim=aim)
    metric = "median" if any(row.median is not None for row in rows) else "iterations_per_second"
    eligible = [
        replace(row, ranked=row.ranked and runs[row.id, row.machine].ranked and getattr(row, metric) is not None)
        for row in rows
    ]
    chosen = _references(eligible, runs, reference)
    compared = [_with_speedup(row, chosen[row.device], among) if row.device in chosen else row for row in eligible]
    placed = _order_rows(compared, among)
    return [_with_hint(row, runs, placed) for row in placed]


def _with_hint(row: Row, runs: Mapping[RowKey, CaseRuns], rows: Sequence[Row]) -> Row:
    """Add the command that decides between the likeliest row and the next."""
    if row.standing != "likeliest":
        return row
    rival = next(row for row in rows if row.standing == "open")
    winner, other = runs[row.id, row.machine].first, runs[rival.id, rival.machine].first
    budget = replace(winner.budget, max_time=None) if IN_TURNS in winner.facts else winner.budget
    words = ab_words(winner.case, other.case, budget, device="cuda" if winner.environment.gpus else "cpu")
    return replace(row, hint=command("ab", [bare(row.model), *words]))


def _with_speedup(row: Row, base: Row, race_result: Race) -> Row:
    if row.id == base.id:
        return replace(row, reference=base.name, reference_id=base.id, is_reference=True, speedup=1.0)
    row = replace(row, reference=base.name)
    log_ratio = race_result.data.difference(base.id, row.id) if row.ranked else None
    if log_ratio is None:
        return row
    row = replace(row, reference_id=base.id, speedup=1 / log_ratio.ratio, sure=log_ratio.replicated)
    if not log_ratio.replicated:
        return row
    interval = log_ratio.interval(race_result.level)
    return replace(row, speedup_low=1 / interval.high, speedup_high=1 / interval.low)


def _order_rows(rows: Sequence[Row], race_result: Race) -> list[Row]:
    """Sort rows: ranked ones by speed, then wrong ones, then failures."""
    answer = race_result.answer
    rivals = race_result.state.rivals if race_result.state else {}
    order = [answer.best, *rivals]

    def place(row: Row) -> tuple[int, bool, float]:
        seconds = math.inf if row.seconds_per_call is None else row.seconds_per_call
        return order.index(row.id) if row.ranked and row.id in order else len(order), not row.ok, seconds

    placed = []
    for number, row in enumerate(sorted(rows, key=place), 1):
        if not row.ranked or row.id not in order:
            placed.append(row)
            continue
        standing: RowStanding = answer.kind
        if rival := rivals.get(row.id):
            low, high = ends(rival.interval(race_result.level) if rival.replicated else None)
            row = replace(row, behind=rival.ratio, behind_low=low, behind_high=high)
            standing = "equal" if row.id in answer.equal else "open" if row.id in answer.open else "slower"
        chance = answer.chance if row.id == answer.best else None
        row = replace(row, place=number, standing=standing, fastest=row.id in answer.fastest, chance=chance)
        placed.append(replace(row, rounds=answer.rounds, threshold=answer.threshold))
    return placed


def _references(rows: Sequence[Row], runs: Mapping[RowKey, CaseRuns], reference: str | None) -> dict[str, Row]:
    """Return the reference of each device: the plainest row, with the shortest name among equals."""
    checked = (record.agreement for row in rows for record in runs[row.id, row.machine].records)
    usual = {agreement.reference.partition(" ")[0] for agreement in checked if agreement}
    eligible = [row for row in rows if row.ranked]
    if reference:
        timed = [row for row in rows if row.ok and row.seconds_per_call is not None]
        eligible = [row for row in timed if matches_words(row, reference)]

    def place(row: Row, device: str) -> tuple[Any, ...]:
        case = runs[row.id, row.machine].first.case
        return *reference_rank(case, row.name, device, usual, reference), len(row.name), row.name

    devices = {row.device for row in rows} if eligible else ()
    return {device: min(eligible, key=partial(place, device=device)) for device in devices}


def matches_words(row: Row, phrase: str) -> bool:
    """Return whether label, name or backend contain every word of ``phrase``."""
    return label_words(phrase) <= label_words(row.label) | label_words(row.name) | {row.library}
