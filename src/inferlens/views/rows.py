"""Records become rows: one :class:`Row` per case, with all that a table or a chart can show of it, computed once.

Rows hold numbers, never text made from numbers, and only what was measured: rates come from windows of back-to-back
calls, never from 1 / latency. Speed-ups are between rows of one *comparison*: model, inputs, batch and machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import field
from msgspec.structs import replace

from inferlens.analysis.interference import MachineLoad
from inferlens.analysis.measures import bound_by, build_seconds, case_numbers, device_peak, host_peak
from inferlens.analysis.notes import Note, case_notes, small_quantized_share, sort_notes
from inferlens.analysis.race import FinalsAim, Race, race
from inferlens.analysis.samples import CaseRuns, device_name, latest
from inferlens.record.display import Struct
from inferlens.record.record import IN_TURNS, Record, card_name, machine_name
from inferlens.spec.case import TensorSpec, bare, shown_together, sizes_of, with_batch
from inferlens.spec.dimensions import with_names
from inferlens.spec.plan import ab_words, command, plainness, unknown, words
from inferlens.stats.intervals import ends
from inferlens.units import duration, moment, plural
from inferlens.views.plain import plain, profile_command

SAID_PARTLY = "(partly)"  # behind a precision: less than half of the multiply-adds are in it
# Words for outputs that are not wrong and yet not what they should be, by the codes of notes.
OF_OUTPUTS = {
    "at-chance": "accuracy meaningless", "random-calibration": "accuracy meaningless", "less-accurate": "less accurate",
    "random-outputs": "random", "keeps-state": "keeps state",
}  # fmt: skip
RowStanding = Literal["", "fastest", "equal", "likeliest", "open", "slower", "none"]


class Row(Struct, frozen=True, kw_only=True):
    """One case as it is shown; times in seconds, sizes in bytes, ``None`` for what was not measured or is not certain.

    ``NAME_low`` and ``NAME_high`` are the 95 % interval of what stands before them, over processes where there are
    several.

    Attributes:
        name: the case within its table: backend, precision and what else tells it from the other rows.
        machine: what tells the machine from another; rows of two machines are never compared.
        device_name: name of the GPU, or of the CPU for cases on the CPU; with more where machines share it.
        hint: what may help one that did not run; of the likeliest, the command that decides between it and the next.
        inputs: the actual inputs; ``batch`` is the number of items in one call, ``sizes`` are those of the other named
            dimensions, and ``form`` is the inputs with names in place of these, such as ``x={batch}x{width}:int64``.
        runs: how many runs of the case there are, of which this is the newest.
        run: when the run began, of rows that are shown run by run; rows of two runs are not compared then.
        prepared: the range of sizes it was prepared for, if for more than the measured ones.
        io: where a call begins and ends; ``call_mode``: how it was called besides, ``cold``, ``rotating``.
        card: the beginning of the GPU's own name (UUID), of cases on a GPU.
        processes: how many processes it was measured in; ``between``: whether intervals cover how far these differ.
        samples: number of latency samples that statistics are of; ``left_out`` were disturbed or not steady yet.
        median: of several processes the geometric mean of their medians.
        h2d, compute, d2h: medians of the parts of the GPU time, where a call begins and ends on the host.
        iterations_per_second: calls per second, median of the throughput windows; items are calls x batch.
        separate_rate: whether throughput was measured in other processes than latency.
        in_flight: calls in flight when throughput was measured; ``None``: no limit but the queue's.
        bound: what a call on a GPU waits for most: ``host``, ``copies`` or ``GPU``.
        speedup: reference's median latency over this one's; of rates where no latency was measured.
        sure: whether the speed-up's interval covers how far processes differ.
        metric: what ``accuracy`` is: ``top-1``, ``agreement``, the name of the user's function; ``accuracy_share``:
            whether it is a share of the samples. ``drop``: how far it is below fp32, of no share relative to that.
        error: relative L2 error of the outputs; ``agrees`` is ``None`` where they could not be checked.
        build: seconds of export and build together; ``cached`` if what was built before was used.
        host_peak, device_peak: the largest of its processes; ``energy``: joules for one item.
        ranked: whether the row may be the fastest: it ran, and its outputs are not known to be wrong.
        place: its place among those of its comparison that may win, by speed.
        standing: how it stands there: it is the ``fastest``; or ``equal``: it may be as fast; or the ``likeliest``,
            beside others that are ``open``: they may be faster; or ``slower``.
        fastest: whether it is the fastest, or may be as fast; of an open race, whether it is the likeliest.
        chance: of the first, the probability that no other one is faster by more than the threshold.
        behind: its time over that of the first one.
        ended: when the last of its records was kept; ``command``: what those of one command share.
        rounds: in how many rounds its comparison took turns; ``threshold``: smaller differences do not matter.
        cpus: threads of the CPU that were used, or could be; ``profile``: the command that shows where its time goes.
        machine_load: what other programs used meanwhile.
        notes: what has to be known of it, the most important first.
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
        """Whether the case ran to its end."""
        return self.status == "ok"

    @property
    def outputs(self) -> str:
        """What its outputs are worth, in a word or two."""
        codes = {note.code for note in self.notes}
        if self.agrees is not False and (said := next((OF_OUTPUTS[code] for code in OF_OUTPUTS if code in codes), "")):
            return said
        return (
            "state lost" if "state-lost" in codes else {True: "right", False: "wrong", None: "unchecked"}[self.agrees]
        )

    @property
    def way(self) -> str:
        """The name without its precision, where that stands elsewhere."""
        return plain(self.name.replace(f"{self.backend} {self.precision}", self.backend, 1))

    @property
    def table(self) -> tuple[str, str, str, str]:
        """Rows that share this go into one table: model, machine, inputs but for sizes with names, and the run."""
        return self.model, self.machine, self.form, self.run

    @property
    def comparison(self) -> tuple[str, str, str, int | None, str, str, str]:
        """Rows that share this are compared with each other."""
        return self.model, self.machine, self.inputs, self.batch, self.io, self.call_mode, self.run

    @property
    def dimensions(self) -> dict[str, int | None]:
        """The batch and all sizes, by name."""
        return {"batch": self.batch, **self.sizes}

    def inputs_but(self, names: Collection[str]) -> str:
        """The inputs with these names in the place of sizes; ``N`` for the batch."""
        sizes = {name: str(size) for name, size in self.dimensions.items() if name not in names}
        return re.sub(r"\{(.+?)\}", lambda name: {"batch": "N", **sizes}.get(name[1], name[1]), self.form)

    @property
    def seconds_per_call(self) -> float | None:
        """Seconds for one call, by which rows are sort_notes: the median latency, or one over a rate alone."""
        alone = self.median is None and self.iterations_per_second
        return 1 / alone if alone else self.median


def by(rows: Sequence[Row], name: str) -> list[list[Row]]:
    """The rows of each ``table`` or ``comparison``, in their order."""
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(getattr(row, name), []).append(row)
    return list(groups.values())


def varying(rows: Iterable[Row]) -> list[str]:
    """Return the names of the dimensions in which rows differ, the batch first."""
    every = [row.dimensions for row in rows]
    names = dict.fromkeys(name for item in every for name in item)
    return [name for name in names if len({item.get(name) for item in every}) > 1]


def at(row: Row, names: Iterable[str]) -> str:
    """Return the sizes of a row in words, such as ``batch 8, sequence_length 128``."""
    sizes = row.dimensions
    return plain(", ".join(f"{name} {sizes[name]}" for name in names if sizes.get(name) is not None))


def seconds_of(table: Sequence[Row]) -> float | None:
    """How long the command of all of them took, from when the first began until the last was kept."""
    first, last = [moment(row.created) for row in table], [moment(row.ended) for row in table]
    if len({row.command for row in table}) > 1 or None in (*first, *last):
        return None
    return max(filter(None, last)) - min(filter(None, first))


def ways(table: Sequence[Row]) -> dict[str, str]:
    """Return the name of each row by its id: without the precision where all share it."""
    shared = len({row.precision for row in table}) == 1
    return {row.id: row.way if shared else plain(row.name) for row in table}


def rows(
    records: Sequence[Record], reference: str | None = None, aim: FinalsAim | None = None, *, notes: bool = True
) -> list[Row]:
    """Rows of the latest run of each case, comparison by comparison: the fastest first, failures last.

    Args:
        records: in any order; of the runs of one case on one machine the last counts, with all its processes.
        reference: words that name the reference, such as ``openvino fp16``; ``None`` is the plain one of the backend
            that outputs were checked against.
        aim: what they are compared by, as of :func:`inferlens.analysis.race.race`.
        notes: whether all get their notes, which take longer than the rest; else :func:`noted` gives them to some.

    Raises:
        InferlensError: if ``reference`` names no row.
    """
    runs = latest(records)
    named = _named(runs)
    of = {(row.id, row.machine): run for row, run in zip(named, runs, strict=True)}
    models, tables = (list(dict.fromkeys(getattr(row, name) for row in named)) for name in ("model", "table"))
    comparisons = sorted(
        by(named, "comparison"),
        key=lambda item: (
            models.index(item[0].model),
            tables.index(item[0].table),
            [size or 0 for size in item[0].dimensions.values()],
        ),
    )
    check_named(reference, named)
    found: list[Row] = []
    for (
        comparison
    ) in comparisons:  # all of one before the next: what is worked out of its samples is asked for several times
        measured = [replace(row, **case_numbers(of[row.id, row.machine], row.batch)) for row in comparison]
        mine = ranked(measured, of, reference, aim)
        found += noted(mine, of) if notes else mine
    return found


def noted(shown: Sequence[Row], runs: Mapping[tuple[str, str], CaseRuns]) -> list[Row]:
    """The rows, with what has to be known of them; ``runs`` by id and machine of the row."""
    return [replace(row, notes=sort_notes((*case_notes(runs[row.id, row.machine]), *row.notes))) for row in shown]


def _named(runs: Sequence[CaseRuns]) -> list[Row]:
    """A row for each run, with what tells it from others in its name: device, range of sizes, or a number.

    Those that failed before they knew their inputs take them from another of the same model, or as they were asked for.
    """
    known: dict[object, tuple[TensorSpec, ...]] = {}
    devices: dict[object, set[str]] = {}
    for run in runs:
        case = run.first.case
        if run.first.model.inputs:
            known[case.model, case.batch, case.inputs] = run.first.model.inputs
        if run.ran:
            devices.setdefault((case.model, machine_name(run.first.environment)), set()).add(case.device)
    found = []
    for run, shown in zip(runs, shown_together([run.first.case for run in runs]), strict=True):
        case = run.first.case
        only = devices.get((case.model, machine_name(run.first.environment))) == {case.device}
        said = only or case.device in (case.backend, case.variant)
        inputs = run.first.model.inputs or known.get((case.model, case.batch, case.inputs))
        if not inputs:
            fixed = (TensorSpec(spec.name, spec.shape, spec.dtype, spec.low, spec.high) for spec in case.inputs)
            inputs = with_batch(tuple(fixed), case.batch)
        inputs, _ = with_names(inputs)
        found.append(_row(run, inputs, shown.words("batch", *case.sizes, *["device"] * said)))
    return _told_apart(_machines_told_apart(found, runs))


def _machines_told_apart(rows: Sequence[Row], runs: Sequence[CaseRuns]) -> list[Row]:
    """The rows, and beside the device's name what tells its machine from others that have one of that name."""
    choices: dict[str, dict[str, list[str]]] = {}
    for row, run in zip(rows, runs, strict=True):
        where, device = run.first.environment, row.device_name
        threads, card = plural(where.cpu_threads or 0, "thread"), f"{device} {card_name(where)}"
        names = [
            device,
            f"{device}, {threads}",
            card,
            f"{card}, {threads}",
            f"{card}, driver {where.driver}",
            row.machine,
        ]
        choices.setdefault(device, {}).setdefault(row.machine, names)
    told: dict[tuple[str, str], str] = {}
    for device, machines in choices.items():
        unlike = (item for item in zip(*machines.values(), strict=True) if len({*item}) == len(machines))
        told |= {(device, machine): name for machine, name in zip(machines, next(unlike), strict=True)}
    return [replace(row, device_name=told[row.device_name, row.machine]) for row in rows]


def _told_apart(rows: Sequence[Row]) -> list[Row]:
    """The rows, their names with the range of sizes where ranges differ, and with a number where names are equal."""
    ranges: dict[object, set[str]] = {}
    for row in rows:
        ranges.setdefault(row.comparison, set()).add(row.prepared)
    seen: dict[object, int] = {}
    named = []
    for row in rows:
        name = f"{row.name} {row.prepared}".strip() if len(ranges[row.comparison]) > 1 else row.name
        number = seen[row.comparison, name] = seen.get((row.comparison, name), 0) + 1
        named.append(replace(row, name=f"{name} ({number})" if number > 1 else name))
    return named


def _row(run: CaseRuns, inputs: tuple[TensorSpec, ...], words: list[str]) -> Row:
    """What one run says by itself; ``words`` are those of its name."""
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
        name=" ".join([*words[:2], *["(TF32)"] * lowered, *[SAID_PARTLY] * partly, *words[2:]]),
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
    """An input with names in the place of sizes, such as ``x={batch}x3x{image_size}x{image_size}:float32``."""
    named = [f"{{{name}}}" if name else str(size) for name, size in zip(spec.names, spec.shape, strict=True)]
    named[:1] = ["{batch}" if size == batch else str(size) for size in spec.shape[:1]]
    return f"{spec.name}={'x'.join(named)}{str(spec)[len(spec.name) + len('x'.join(map(str, spec.shape))) + 1 :]}"


def _range(spec: TensorSpec) -> str:
    """The sizes that a model was prepared for, such as ``x=1..16x3x224x224 opt 2x3x224x224``."""
    least, _, most = spec.profile
    sizes = "x".join(str(low) if low == high else f"{low}..{high}" for low, high in zip(least, most, strict=True))
    return f"{spec.name}={sizes}" + (f" opt {'x'.join(map(str, spec.best))}" if spec.best else "")


# Which row is the fastest of its comparison, which one the others are compared with, and how much faster they are.
#
# The reference is the plainest row of the backend that outputs were checked against: fp32, no options, the library's
# own number of threads. Each device has its own, or else takes another device's. Words may name another one: of several
# that they fit it is the plainest.


def check_named(named: str | None, rows: Sequence[Row]) -> None:
    """Raises InferlensError for words that are to name the reference, and fit no row."""
    if named and rows and not any(fits(row, named) for row in rows):
        raise unknown(named, [row.label for row in rows])


def ranked(
    rows: Sequence[Row],
    runs: Mapping[tuple[str, str], CaseRuns],
    named: str | None,
    aim: FinalsAim | None = None,
) -> list[Row]:
    """The rows of a comparison with speed-ups, the fastest marked: the reference, ranked rows, wrong ones, failures.

    ``runs`` are what was measured, by id and machine of its row; words that are ``named`` name the reference, if they
    fit a row.
    """
    among = race({row.id: runs[row.id, row.machine] for row in rows}, aim=aim)
    metric = "median" if any(row.median is not None for row in rows) else "iterations_per_second"
    able = [
        replace(row, ranked=row.ranked and runs[row.id, row.machine].ranked and getattr(row, metric) is not None)
        for row in rows
    ]
    chosen = _references(able, runs, named)
    done = [_against(row, chosen[row.device], among) if row.device in chosen else row for row in able]
    placed = _placed(done, among)
    return [_with_hint(row, runs, placed) for row in placed]


def _with_hint(row: Row, runs: Mapping[tuple[str, str], CaseRuns], rows: Sequence[Row]) -> Row:
    """A row that is the likeliest beside others: with the command that decides between it and the next of them."""
    rivals = [row for row in rows if row.standing == "open"]
    if row.standing != "likeliest":
        return row
    one, record = (runs[item.id, item.machine].first for item in (row, rivals[0]))
    budget = replace(one.budget, max_time=None) if IN_TURNS in one.facts else one.budget
    words = ab_words(one.case, record.case, budget, device="cuda" if one.environment.gpus else "cpu")
    return replace(row, hint=command("ab", [bare(row.model), *words]))


def _against(row: Row, base: Row, among: Race) -> Row:
    if row.id == base.id:
        return replace(row, reference=base.name, reference_id=base.id, is_reference=True, speedup=1.0)
    log_ratio = among.data.difference(base.id, row.id) if row.ranked else None
    if log_ratio is None:
        return replace(row, reference=base.name)
    interval = log_ratio.interval(among.level) if log_ratio.replicated else None
    return replace(
        row,
        reference=base.name,
        reference_id=base.id,
        speedup=1 / log_ratio.ratio,
        speedup_low=1 / interval.high if interval else None,
        speedup_high=1 / interval.low if interval else None,
        sure=log_ratio.replicated,
    )


def _placed(rows: Sequence[Row], among: Race) -> list[Row]:
    """The rows in order: ranked ones by speed, the fastest first, wrong ones by speed, what did not run."""
    answer = among.answer
    rivals = among.state.rivals if among.state else {}
    order = [answer.best, *rivals]

    def place(row: Row) -> tuple[int, bool, float]:
        return order.index(row.id) if row.ranked and row.id in order else len(order), not row.ok, _seconds(row)

    placed = []
    for number, row in enumerate(sorted(rows, key=place), 1):
        if not row.ranked or row.id not in order:
            placed.append(row)
            continue
        standing: RowStanding = answer.kind
        if row.id in rivals:
            rival = rivals[row.id]
            low, high = ends(rival.interval(among.level) if rival.replicated else None)
            row = replace(row, behind=rival.ratio, behind_low=low, behind_high=high)
            standing = "equal" if row.id in answer.equal else "open" if row.id in answer.open else "slower"
        placed.append(
            replace(
                row,
                place=number,
                standing=standing,
                fastest=row.id in answer.fastest,
                chance=answer.chance if row.id == answer.best else None,
                rounds=answer.rounds,
                threshold=answer.threshold,
            )
        )
    return placed


def _seconds(row: Row) -> float:
    return math.inf if row.seconds_per_call is None else row.seconds_per_call


def _references(rows: Sequence[Row], runs: Mapping[tuple[str, str], CaseRuns], named: str | None) -> dict[str, Row]:
    """The reference of each device, by the one order that there is; of rows that are as plain, the shortest name."""
    checked = (record.agreement for row in rows for record in runs[row.id, row.machine].records)
    usual = {agreement.reference.partition(" ")[0] for agreement in checked if agreement}
    able = [row for row in rows if row.ranked]
    if named:
        able = [row for row in rows if row.ok and row.seconds_per_call is not None and fits(row, named)]

    def place(row: Row, device: str) -> tuple[Any, ...]:
        case = runs[row.id, row.machine].first.case
        return named not in (row.label, row.name), *plainness(case, device, usual), len(row.name), row.name

    return {device: min(able, key=partial(place, device=device)) for device in {row.device for row in rows} if able}


def fits(row: Row, named: str) -> bool:
    """Whether every word of ``named`` is a word of the row's label, or its backend without the variant."""
    return words(named) <= words(row.label) | words(row.name) | {row.backend.partition(":")[0]}
