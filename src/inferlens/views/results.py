"""Results of the Python interface: records that print their table and become data frames.

Everything is computed on demand, and looks like the output of the command line.
"""

from __future__ import annotations

import os
import types
from collections import UserList
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints, overload

import msgspec

from inferlens.analysis.ab_result import ABResult, ABSteps
from inferlens.analysis.comparison import RecordComparison, compare
from inferlens.analysis.evidence import Finding, Findings
from inferlens.analysis.findings import findings
from inferlens.analysis.load import best_record, may_win
from inferlens.analysis.samples import case_and_machine, split_runs
from inferlens.analysis.trace import LoadedTrace, load_trace
from inferlens.analysis.tuning import Effect, TuningReport
from inferlens.errors import InferlensError, library
from inferlens.execution.ab import ab, ab_steps
from inferlens.execution.deploy import Deployed, load
from inferlens.execution.quantize import quantize
from inferlens.execution.remote import profile
from inferlens.record.builds import Quantization
from inferlens.record.display import Displayed, Struct, draw, short
from inferlens.record.load import LoadRecord
from inferlens.record.profile import Profile
from inferlens.record.record import Record, machine_name
from inferlens.record.store import BEST, RECORD, LoadedProfiles, Paths, as_paths, load_profiles, safe_name
from inferlens.record.store import load_records as loaded
from inferlens.spec.case import bare
from inferlens.spec.commands import own_options
from inferlens.spec.options import texts
from inferlens.spec.plan import Plan, as_plan
from inferlens.units import listing, plural
from inferlens.views import table
from inferlens.views.answer import answers
from inferlens.views.comparison import ab_document, comparison_document
from inferlens.views.load import load_document
from inferlens.views.profiles.cases import group_profiles
from inferlens.views.profiles.findings import findings_document, findings_table, judge_cases
from inferlens.views.profiles.modules import modules_document
from inferlens.views.profiles.quantization import quantization_document
from inferlens.views.records import records_document, row_fields, row_values
from inferlens.views.renderers import render
from inferlens.views.renderers.html import notebook_html
from inferlens.views.report import MAX_DEPTH
from inferlens.views.rows import Row, group_rows, rows
from inferlens.views.table import Column, Document, Line, Table, plain, select_columns
from inferlens.views.trace import Selection
from inferlens.views.trace_documents import show_trace, traces_document
from inferlens.views.tuning import finals_rows, tunings_document

if TYPE_CHECKING:
    import pandas
    import polars


class Records(Displayed, Sequence[Record]):
    """Hold records, failed ones included, in order; ``print`` shows their table.

    Attributes:
        records: the records as a list.
        folders: folders of loaded records by id.
        problems: a sentence per unreadable file.
        reference: the row that speed-ups refer to, as in ``--reference``; ``None`` is the usual one.
        where: the folder for commands in the output.
    """

    def __init__(
        self,
        records: Iterable[Record],
        *,
        reference: str | None = None,
        folders: dict[str, Path] | None = None,
        problems: Sequence[str] = (),
        where: str | Sequence[str] = "",
    ) -> None:
        self.records = list(records)
        self.reference = reference
        self.folders = folders or {}
        self.problems = list(problems)
        self.where = where

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> Records: ...
    def __getitem__(self, place: int | slice) -> Record | Records:
        return self._with(self.records[place]) if isinstance(place, slice) else self.records[place]

    def __add__(self, records: Iterable[Record]) -> Records:
        more = records if isinstance(records, Records) else Records(records)
        folders, problems = {**self.folders, **more.folders}, [*self.problems, *more.problems]
        return Records([*self, *more], reference=self.reference, folders=folders, problems=problems)

    def __eq__(self, other: object) -> bool:
        return self.records == (other.records if isinstance(other, Records) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        models = list(dict.fromkeys(record.case.model for record in self))
        ran = sum(record.status == "ok" for record in self)
        return f"<{plural(len(self), 'record')} of {listing(models)}, {ran} ran>" if self else "<no records>"

    @property
    def document(self) -> table.Document:
        return records_document(self, self.reference, where=self.where)

    def render(self, format: str = "table", *, wide: bool = False, columns: str | None = None, width: int = 100) -> str:
        """Return the table in a format: ``table``, ``markdown``, ``csv``, ``json`` or ``html``, which is a page.

        ``wide`` shows all columns; ``columns`` selects some by title, with commas.
        """
        return render(self.document, format, width=width, wide=wide, columns=columns)

    def against(self, reference: str) -> Records:
        """Return the same records with speed-ups against another row, such as ``"onnxruntime:cpu fp32"``."""
        return self._with(self.records, reference)

    @cached_property
    def rows(self) -> list[Row]:
        """Return a row per case in seconds and bytes.

        Raises:
            InferlensError: if the reference is no row.
        """
        return rows(self.records, self.reference)

    @property
    def answer(self) -> str:
        """Return a line per comparison: the fastest case, the speed-up and its certainty."""
        return "\n".join(map(str, answers(self.rows)))

    @property
    def comparisons(self) -> list[Records]:
        """Return the records of each comparison: one model, batch, machine, and so on."""
        result, groups = self._by_row(), group_rows(self.rows, "comparison")
        places = [{case_and_machine(result[row.id, row.machine]) for row in group} for group in groups]
        return [self._with(record for record in self if case_and_machine(record) in place) for place in places]

    @property
    def runs(self) -> list[Records]:
        """Return the records of each run, the oldest first. The table shows the newest run of a case."""
        return [self._with(run) for run in split_runs(self.records)]

    @property
    def fastest(self) -> Record:
        """Return the first record of the fastest case, or of the likeliest.

        Raises:
            InferlensError: if none ran with right outputs, or there are several comparisons, such as batches.
        """
        return self.equally_fast[0]

    @property
    def equally_fast(self) -> tuple[Record, ...]:
        """Return the record of the fastest case and those of equally fast cases.

        Raises:
            InferlensError: as :attr:`fastest`.
        """
        groups = group_rows(self.rows, "comparison")
        if len(groups) > 1:
            problem = f"There is a fastest case in each of {len(groups)} comparisons, such as batches."
            raise InferlensError(problem, hint="[each.fastest for each in records.comparisons]")
        first = [row for row in self.rows if row.fastest]
        if not first:
            raise InferlensError("No case ran with right outputs.", hint="print(records), which says why")
        return tuple(self._by_row()[row.id, row.machine] for row in first)

    def to_polars(self) -> polars.DataFrame:
        """Return the table as a polars data frame with all CSV columns in seconds and bytes, null for unknown.

        Raises:
            MissingLibrary: if polars is not installed.
        """
        frames = library("polars", extra="frames")
        kinds: dict[object, Any] = {str: frames.String, bool: frames.Boolean, int: frames.Int64, float: frames.Float64}
        types = _column_types(row_fields(self.rows)).items()
        schema = {name: kinds.get(kind, frames.List(frames.String)) for name, kind in types}
        frame: polars.DataFrame = frames.DataFrame(self._values(schema), schema=schema, orient="row")
        return frame

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a pandas data frame with the columns of :meth:`to_polars`.

        Raises:
            MissingLibrary: if pandas is not installed.
        """
        frames = library("pandas", extra="frames")
        kinds: dict[object, str] = {bool: "boolean", int: "Int64", float: "float64"}
        schema = {name: kinds.get(kind, "object") for name, kind in _column_types(row_fields(self.rows)).items()}
        frame: pandas.DataFrame = frames.DataFrame(self._values(schema), columns=[*schema]).astype(schema)
        return frame

    def _values(self, names: Iterable[str]) -> list[list[Any]]:
        return [[values.get(name) for name in names] for values in map(row_values, self.rows)]

    def _by_row(self) -> dict[tuple[str, str], Record]:
        return {(record.id, machine_name(record.environment)): record for record in self}

    def _with(self, records: Iterable[Record], reference: str | None = None) -> Records:
        named = reference or self.reference
        return Records(records, reference=named, folders=self.folders, problems=self.problems, where=self.where)


class Tuning(Records):
    """Hold the records of a tuning's final rounds; ``print`` shows the answer.

    Attributes:
        tuned: the result for each model and batch size.
        model: the live module and its example inputs, for :meth:`load`.
    """

    def __init__(self, tuned: Sequence[TuningReport], model: tuple[Any, Any] = (None, None)) -> None:
        super().__init__(record for report in tuned for record in report.final_records)
        self.tuned = tuple(tuned)
        self.model = model

    @property
    def document(self) -> table.Document:
        return tunings_document(self.tuned)

    @cached_property
    def rows(self) -> list[Row]:
        """Return a row per finalist by the tuning's objective, in seconds and bytes."""
        return [row for tuned in self.tuned for row in finals_rows(tuned)]

    @property
    def comparisons(self) -> list[Records]:
        """Return one tuning per model and batch size."""
        return [Tuning([tuned], self.model) for tuned in self.tuned]

    @property
    def effects(self) -> tuple[Effect, ...]:
        """Return how many times faster each setting is at the winner, from ``low`` to ``high``.

        These are ``None`` with too few rounds; ``chosen`` marks the winner's settings.

        Raises:
            InferlensError: if there are several models or batch sizes.
        """
        return self._single.effects

    def load(self, *, rebuild: bool = False, trust: bool = False, copy: bool = True) -> Deployed:
        """Return the winner as a callable like :func:`inferlens.load`; a live module must keep its weights.

        Raises:
            InferlensError: if there is no winner, or several, or it cannot run here as it was measured.
        """
        from inferlens.execution.cases import model_handle

        folder, is_live = Path(self._single.folder), self.fastest.case.model.startswith("live:")
        winner = load_records(folder)[0]
        with model_handle(*self.model) if is_live else nullcontext() as model:
            return load(winner, folder, rebuild=rebuild, trust=trust, copy=copy, model=model)

    @property
    def _single(self) -> TuningReport:
        if len(self.tuned) > 1:
            problem = f"There is a fastest case in each of {len(self.tuned)} tunings, such as batches."
            raise InferlensError(problem, hint="[each.fastest for each in tuning.comparisons]")
        return self.tuned[0]


class LoadTest(Displayed, UserList[LoadRecord]):
    """Hold a record of each deployment and round of a load test, failed ones included; ``print`` shows the answer."""

    @property
    def records(self) -> list[LoadRecord]:
        """Return the records as a list."""
        return self.data

    def __repr__(self) -> str:
        return f"<{plural(len(self), 'load record')} of {listing(sorted({record.case.model for record in self}))}>"

    @property
    def document(self) -> table.Document:
        return load_document(self.records, self.records[0].price if self.records else None)

    @property
    def best(self) -> LoadRecord:
        """Return the record with the highest capacity and right answers.

        Raises:
            InferlensError: if no way keeps the limit.
        """
        winners = [record for record in self if may_win(record)]
        if not winners:
            raise InferlensError("No way keeps the limit with right answers.", hint="print(test), which says why")
        return best_record(winners)


def _column_types(names: Iterable[str]) -> dict[str, object]:
    """Return the type of each column; other columns are sizes."""
    hints = get_type_hints(Row)
    available = {field.encode_name: hints[field.name] for field in msgspec.structs.fields(Row)}
    kinds = {name: available.get(name, int) for name in names}
    return {name: get_args(kind)[0] if isinstance(kind, types.UnionType) else kind for name, kind in kinds.items()}


def load_records(*paths: Paths) -> Records:
    """Load every record under ``paths``, which are record files or folders above them.

    Samples stay in the files until needed. Unreadable files become ``problems``. Raises InferlensError where a path or
    any record is missing.
    """
    result = loaded(*paths)
    where = [*map(str, as_paths(paths))]
    return Records(result.records, folders=result.folders, problems=result.problems, where=where)


def best_case(path: Paths) -> tuple[Record, Path]:
    """Return the record of the fastest or only case under ``path``, and its folder.

    A folder ``best``, which a tuning leaves, has priority.

    Raises:
        InferlensError: if there is none, or there are several, such as one for each batch.
    """
    (values,) = as_paths([path])
    records = load_records(values)
    best = load_records(values / BEST) if (values / BEST / RECORD).is_file() else records
    _refuse_several_models(best + records, values)
    others = [record for record in records if record.status == "ok" and record.case.work != best[0].case.work]
    if best is not records and others:
        problem = f"{values} has a tuned winner ({best[0].case.sizes_label}) and records of other inputs."
        raise InferlensError(problem, hint=f"{values / BEST} for the winner, or the folder of one case")
    if len({record.case.digest for record in best}) == 1:
        return best[0], best.folders[best[0].id]
    if len(comparisons := best.comparisons) > 1:
        folder = best.folders[comparisons[0].fastest.id]
        problem = f"There is a fastest case in each of {len(comparisons)} comparisons in {values}, such as batches."
        raise InferlensError(problem, hint=f"the folder of one case, such as {folder}")
    return best.fastest, best.folders[best.fastest.id]


def winners(path: Paths, backends: Sequence[str] = ()) -> list[Record]:
    """Return a record of each fastest case under ``path``, of some backends or all; a tuned winner has priority.

    Raises:
        InferlensError: if there is none, or the records are of several models.
    """
    (values,) = as_paths([path])
    records = load_records(values / BEST if (values / BEST / RECORD).is_file() else values)
    _refuse_several_models(records, values)
    if backends:
        cases = [(record, record.case) for record in records]
        records = Records(record for record, case in cases if {case.backend, case.backend_label} & {*backends})
    fastest = [(row.id, row.machine) for row in records.rows if row.fastest]
    if not fastest:
        problem = f"No case{' of ' + listing(backends) if backends else ''} in {values} ran with right outputs."
        raise InferlensError(problem, hint=f"inferlens show {values}")
    by_row = records._by_row()
    return [by_row[key] for key in fastest]


def winner_plans(model: Any, words: Mapping[str, Any]) -> list[Plan]:
    """Return a plan of each way that won, if the model is a folder of records; ``words`` of ``load`` take precedence.

    The sizes are those of the winner, unless the words have some. The output is the folder that has these records.
    """
    if not isinstance(model, (str, Path)) or not os.path.isdir(model):
        return []
    folder = Path(model)
    _, given = own_options("load", words)
    records = winners(folder, texts(given.pop("backend", ())))
    left_out = {"batch", "depth", "io", "cold", "rotate"} | ({"input"} if {"mix", "dim"} & words.keys() else set())
    ways = [msgspec.toml.decode(as_plan(record.case), type=dict[str, Any]) for record in records]
    ways = [{name: value for name, value in way.items() if name not in left_out} for way in ways]
    if len({str(way.get("input")) for way in ways}) > 1:
        raise InferlensError(f"The winners in {folder} have several sizes.", expected="one", hint="--dim, or --mix")
    name = safe_name(records[0].model.name)
    root = next((path.parent for path in (folder, *folder.parents) if path.name == name), Path("results"))
    unique = {str(way): way for way in ways}
    return [Plan.from_words({"output": str(root), **way, **given}) for way in unique.values()]


def _refuse_several_models(records: Records, given: Path) -> None:
    folders = {bare(record.case.model).removeprefix("factory:"): records.folders[record.id] for record in records}
    if len(folders) > 1:
        problem = f"{given} holds records of {len(folders)} models: {listing([*folders])}."
        raise InferlensError(problem, hint=f"the folder of one of them, such as {next(iter(folders.values()))}")


# Documents of all results. Public functions are imported from here, because their rooms do not know the views.

__all__ = [
    "ABResult", "ABSteps", "Deployed", "Finding", "Findings", "LoadTest", "LoadedProfiles", "LoadedTrace", "Profile",
    "Quantization", "Record", "RecordComparison", "Records", "Tuning", "ab", "ab_steps", "compare", "findings", "load",
    "load_profiles", "load_records", "load_trace", "profile", "quantize",
]  # fmt: skip


def _profiles_document(loaded: LoadedProfiles) -> Document:
    """Return what could be won in each case, and the modules of all of them."""

    def blocks(depth: int | None) -> list[Table | str]:
        tables = findings_document(judge_cases(loaded), brief=True).blocks()
        return [*tables, *modules_document(group_profiles(loaded), depth=depth, brief=True).blocks()]

    return Document(lambda: blocks(MAX_DEPTH), dict, tries=lambda _: [blocks(None)])


def _fields_document(result: Struct) -> Document:
    """Return the fields of a result that differ from their defaults."""
    texts = {name: value if isinstance(value, str) else short(value) for name, value in result.__rich_repr__()}
    lines = [Line(name, (plain(text),)) for name, text in texts.items()]
    return Document(
        lambda: [Table(type(result).__name__, "", [Column("value", "", numeric=False, fold=True)], lines)], dict
    )


DOCUMENTS: dict[type, Callable[[Any], Document]] = {
    Records: lambda records: records.document,
    LoadTest: lambda test: test.document,
    Record: lambda record: Records([record]).document,
    Deployed: lambda deployed: Records([deployed.record]).document,
    TuningReport: lambda tuned: tunings_document([tuned]),
    RecordComparison: comparison_document,
    ABResult: ab_document,
    ABSteps: ab_document,
    LoadedProfiles: _profiles_document,
    Profile: lambda profile: _profiles_document(LoadedProfiles([profile])),
    Findings: lambda findings: Document(lambda: [findings_table(findings)], dict),
    Finding: lambda finding: Document(lambda: [findings_table([finding])], dict),
    Quantization: quantization_document,
    LoadedTrace: lambda trace: traces_document(
        [show_trace(trace.analysis, Path("trace"), ("overview",), Selection())], ("overview",), next_step=False
    ),
}


def _draw(document: Document, format: Literal["table", "html"]) -> str:
    if format == "table":
        return render(document).rstrip("\n")
    return notebook_html(select_columns(document.blocks(), None))


@draw.register
def _struct(result: Struct, format: Literal["table", "html"]) -> str:
    return repr(result) if format == "table" else _draw(_fields_document(result), format)


for kind, document in DOCUMENTS.items():
    draw.register(kind, lambda result, format, make=document: _draw(make(result), format))
