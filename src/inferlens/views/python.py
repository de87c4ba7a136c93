"""Records as Python has them: a sequence that prints itself as its table, and becomes a data frame.

What it shows is what the command line shows of the same records. Everything is computed when it is asked for.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints, overload

import msgspec

from inferlens.analysis.samples import case_and_machine, split_runs
from inferlens.errors import InferlensError, library
from inferlens.record.display import Displayed
from inferlens.record.record import Record, machine_name
from inferlens.record.store import BEST, RECORD, Paths, given_paths
from inferlens.record.store import load_records as loaded
from inferlens.spec.case import bare
from inferlens.units import listing, plural
from inferlens.views import table
from inferlens.views.answer import answers
from inferlens.views.raced.tuned import finals_of, tunings_document
from inferlens.views.records import document, fields_of
from inferlens.views.rows import Row, by, rows

if TYPE_CHECKING:
    import pandas
    import polars

    from inferlens.analysis.tuning import Effect, TuningReport
    from inferlens.execution.deploy.call import Deployed


class Records(Displayed, Sequence[Record]):
    """Records, failed cases included, in the order they were made; ``print`` shows their table.

    Attributes:
        records: the same as a list.
        folders: by a record's id, where it lies; of records that were read from disk.
        problems: files that could not be read, a sentence each.
        reference: the row that speed-ups are against, as ``--reference`` has it; ``None`` is the usual one.
        where: the folders that they lie in, for the commands that the table goes on with.
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
        """What is shown of them."""
        return document(self, self.reference, where=self.where)

    def render(self, format: str = "table", *, wide: bool = False, columns: str | None = None, width: int = 100) -> str:
        """The table as text of a format: ``table``, ``markdown``, ``csv``, ``json`` or ``html``, which is a page.

        ``wide`` shows all columns, ``columns`` those of these titles, with commas.
        """
        return table.render(self.document, format, width=width, wide=wide, columns=columns)

    def against(self, reference: str) -> Records:
        """The same, with speed-ups against another row, such as ``"onnxruntime:cpu fp32"``."""
        return self._with(self.records, reference)

    @cached_property
    def rows(self) -> list[Row]:
        """The numbers of the table, a row for each case in its order; seconds and bytes.

        Raises:
            InferlensError: if the reference is no row.
        """
        return rows(self.records, self.reference)

    @property
    def answer(self) -> str:
        """Which case is fastest, by how much, and how sure that is: a line for each comparison."""
        return "\n".join(map(str, answers(self.rows)))

    @property
    def comparisons(self) -> list[Records]:
        """The records that are compared with each other: those of one model, batch, machine, and so on."""
        found, groups = self._by_row(), by(self.rows, "comparison")
        places = [{case_and_machine(found[row.id, row.machine]) for row in group} for group in groups]
        return [self._with(record for record in self if case_and_machine(record) in place) for place in places]

    @property
    def runs(self) -> list[Records]:
        """The records of each run, the oldest run first; of several runs of a case the table shows the newest."""
        return [self._with(item) for item in split_runs(self.records)]

    @property
    def fastest(self) -> Record:
        """The record of the fastest case, or of the likeliest where that is not known: of its first process.

        Raises:
            InferlensError: if none ran with right outputs, or there are several comparisons, such as batches.
        """
        return self.equally_fast[0]

    @property
    def equally_fast(self) -> tuple[Record, ...]:
        """The record of the fastest case, and those of cases that are equally fast.

        Raises:
            InferlensError: as :attr:`fastest`.
        """
        groups = by(self.rows, "comparison")
        if len(groups) > 1:
            what = f"There is a fastest case in each of {len(groups)} comparisons, such as batches."
            raise InferlensError(what, hint="[each.fastest for each in records.comparisons]")
        first = [row for row in self.rows if row.fastest]
        if not first:
            raise InferlensError("No case ran with right outputs.", hint="print(records), which says why")
        return tuple(self._by_row()[row.id, row.machine] for row in first)

    def to_polars(self) -> polars.DataFrame:
        """The table as a polars data frame: all columns of ``--format csv``, in seconds and bytes, null for unknown.

        Raises:
            MissingLibrary: if polars is not installed.
        """
        frames = library("polars", extra="frames")
        of: dict[object, Any] = {str: frames.String, bool: frames.Boolean, int: frames.Int64, float: frames.Float64}
        names, lines = fields_of(self.rows)
        schema = {name: of.get(kind, frames.List(frames.String)) for name, kind in _kinds(names).items()}
        frame: polars.DataFrame = frames.DataFrame(lines, schema=schema, orient="row")
        return frame

    def to_pandas(self) -> pandas.DataFrame:
        """The table as a pandas data frame, with the columns of :meth:`to_polars`.

        Raises:
            MissingLibrary: if pandas is not installed.
        """
        frames = library("pandas", extra="frames")
        of: dict[object, str] = {bool: "boolean", int: "Int64", float: "float64"}
        names, lines = fields_of(self.rows)
        kinds = {name: of.get(kind, "object") for name, kind in _kinds(names).items()}
        frame: pandas.DataFrame = frames.DataFrame(lines, columns=names).astype(kinds)
        return frame

    def _by_row(self) -> dict[tuple[str, str], Record]:
        return {(record.id, machine_name(record.environment)): record for record in self}

    def _with(self, records: Iterable[Record], reference: str | None = None) -> Records:
        named = reference or self.reference
        return Records(records, reference=named, folders=self.folders, problems=self.problems, where=self.where)


class Tuning(Records):
    """What a tuning came to: the records of its last rounds, in which the fastest few met; ``print`` shows its answer.

    Attributes:
        tuned: how it ended, for each model and batch size.
        model: the live module that it was of, and its example inputs, for :meth:`load`.
    """

    def __init__(self, tuned: Sequence[TuningReport], model: tuple[Any, Any] = (None, None)) -> None:
        super().__init__(record for item in tuned for record in item.final_records)
        self.tuned = tuple(tuned)
        self.model = model

    @property
    def document(self) -> table.Document:
        """What is shown of it."""
        return tunings_document(self.tuned)

    @cached_property
    def rows(self) -> list[Row]:
        """The numbers of the table, compared by what was to be best; seconds and bytes."""
        return [row for tuned in self.tuned for row in finals_of(tuned)]

    @property
    def comparisons(self) -> list[Records]:
        """One of each model and batch size."""
        return [Tuning([tuned], self.model) for tuned in self.tuned]

    @property
    def equally_fast(self) -> tuple[Record, ...]:
        """The record of the winner, and those of cases that are equally fast.

        Raises:
            InferlensError: if nothing ran with right outputs, or there are several models or batch sizes.
        """
        tuned = self._only
        if not tuned.best:
            raise InferlensError("No case ran with right outputs.", hint="print(tuning), which says why")
        first = {record.case.digest: record for record in reversed(tuned.final_records)}
        names = [case.digest for case in (tuned.best, *tuned.fastest)]
        return tuple(first[name] for name in dict.fromkeys(names))

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What each setting does beside the winner's others: how many times faster it is with it, ``low`` to ``high``.

        These are ``None`` where too few rounds tell it; ``chosen`` are the winner's own.

        Raises:
            InferlensError: if there are several models or batch sizes.
        """
        return self._only.effects

    def load(self, *, rebuild: bool = False, trust: bool = False, copy: bool = True) -> Deployed:
        """The winner as a callable, as of :func:`inferlens.load`; of a live module too, while it has these weights.

        Raises:
            InferlensError: if there is no winner, or several, or it cannot run here as it was measured.
        """
        from inferlens.execution.deploy.call import load
        from inferlens.execution.survey import named

        record = self.fastest
        found = load_records(self._only.folder)[0]
        with named(*self.model) if record.case.model.startswith("live:") else nullcontext() as model:
            return load(found, Path(self._only.folder), rebuild=rebuild, trust=trust, copy=copy, model=model)

    @property
    def _only(self) -> TuningReport:
        if len(self.tuned) > 1:
            what = f"There is a fastest case in each of {len(self.tuned)} tunings, such as batches."
            raise InferlensError(what, hint="[each.fastest for each in tuning.comparisons]")
        return self.tuned[0]


def _kinds(names: Iterable[str]) -> dict[str, object]:
    """The plain type of each column; those that are no fields are sizes."""
    hints = get_type_hints(Row)
    known = {field.encode_name: hints[field.name] for field in msgspec.structs.fields(Row)}
    kinds = {name: known.get(name, int) for name in names}
    return {name: get_args(kind)[0] if isinstance(kind, types.UnionType) else kind for name, kind in kinds.items()}


def load_records(*paths: Paths) -> Records:
    """Every record under ``paths``: record files, or folders at any height above them, one or several.

    Their samples stay in the files and are read when they are asked for. A file that is no record is one of the
    ``problems``. Raises InferlensError where a path or any record is missing.
    """
    found = loaded(*paths)
    given = given_paths(paths)
    return Records(found.records, folders=found.folders, problems=found.problems, where=[*map(str, given)])


def best_case(path: Paths) -> tuple[Record, Path]:
    """The record of the fastest case under ``path``, or of the only one there, and the folder that it lies in.

    Where a tuning left the best case in a folder ``best``, that is the one.

    Raises:
        InferlensError: if there is none, or there are several, such as one for each model or batch.
    """
    (given,) = given_paths([path])
    records = load_records(given)
    best = load_records(given / BEST) if (given / BEST / RECORD).is_file() else records
    _refuse_several_models(best + records, given)
    if len({record.case.digest for record in best}) == 1:
        return best[0], best.folders[best[0].id]
    if len(comparisons := best.comparisons) > 1:
        what = f"There is a fastest case in each of {len(comparisons)} comparisons in {given}, such as batches."
        folder = best.folders[comparisons[0].fastest.id]
        raise InferlensError(what, hint=f"the folder of one case, such as {folder}")
    return best.fastest, best.folders[best.fastest.id]


def _refuse_several_models(records: Records, given: Path) -> None:
    folders: dict[str, list[Path]] = {}
    for record in records:
        folders.setdefault(bare(record.case.model).removeprefix("factory:"), []).append(records.folders[record.id])
    if len(folders) > 1:
        what = f"{given} holds records of {len(folders)} models: {listing([*folders])}."
        first, *_ = folders.values()
        shared = Path(os.path.commonpath(first))
        raise InferlensError(what, hint=f"the folder of one of them, such as {first[0] if shared == given else shared}")
