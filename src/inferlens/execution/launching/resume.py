"""A run that was cut short goes on when the same command is given again, with what its records lack.

Of workers elsewhere alone. The number of the run lies in the output folder until it is over. What was measured in
another environment than that of the worker is measured again there (``parts.still_known``).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

import inferlens
from inferlens.errors import InferlensError
from inferlens.execution.launching.parts import UnderWay
from inferlens.execution.survey import Named, live_files
from inferlens.measure import environment
from inferlens.record.files import make_folder, sha256, try_lock
from inferlens.record.record import CUT_SHORT
from inferlens.record.store import RECORD, Store, load_records
from inferlens.spec.plan import Plan
from inferlens.units import plural


@contextmanager
def resumable(under_way: UnderWay, what: Sequence[object] = ()) -> Iterator[None]:
    """Keeps the number of a run on disk until it is over: the same command goes on with what its records lack.

    Of workers elsewhere alone. ``what`` is done with the plan makes it another one; so do files, this machine and its
    GPUs. While one command has the file, the same command elsewhere is a run of its own.
    """
    if not under_way.apart:
        yield
        return
    plan, model = under_way.launcher.plan, under_way.model
    here = platform.node(), [gpu.uuid for gpu in environment.collect().gpus], named_files(plan, model)
    same = replace(plan, wait=0.0), here, *what
    data = msgspec.json.encode([inferlens.__version__, *same], order="deterministic")
    with open(make_folder(Path(plan.output)) / f".unfinished-{sha256(data)[:12]}.json", "a+b") as file:
        if not try_lock(file.fileno()) or not os.fstat(file.fileno()).st_nlink:  # or it is over by now
            under_way.gathered.remark("The same command is running already. This one is a run of its own.")
            yield
            return
        file.seek(0)
        if before := file.read():
            under_way.run = msgspec.json.decode(before, type=dict[str, str])["run"]
            take_up(under_way)
        else:
            file.write(msgspec.json.encode({"run": under_way.run}) + b"\n")
            file.flush()
        yield
        Path(file.name).unlink()


def named_files(plan: Plan, model: Named | None) -> list[str]:
    """Hashes of the files that a plan names, of modules that it names the files, and of a live module."""
    texts = [*plan.model, plan.weights or "", plan.calibration, plan.accuracy]
    words = dict.fromkeys(word for text in texts for word in (text, *text.split(":")))
    paths = [Path(plan.checkout, each) for word in words for each in (word, f"{word.replace('.', '/')}.py")]
    return [sha256(file) for file in (*paths, *map(Path, live_files(model).values())) if file.is_file()]


def take_up(under_way: UnderWay) -> None:
    """Tells of the records of a run that was cut short; those that did not run are gone, to be measured again."""
    try:
        loaded = load_records(under_way.plan.output, profiled=True)
    except InferlensError:  # there is none
        return
    gathered = under_way.gathered
    for record in (each for each in loaded.records if each.run == under_way.run):
        folder = loaded.folders[record.id]
        if record.status != "ok":
            (folder / RECORD).unlink()
            continue
        if record.facts.pop(CUT_SHORT, None):
            Store.save(folder, record)
        gathered.done(record, folder)
    if gathered.records:
        kept = plural(len(gathered.records), "record")
        gathered.remark(f"Going on with a run that was cut short: {kept} of it are kept.")
