"""Joins stores: the records of several folders in one, with what lies beside them.

Records keep their bytes. One that is there already, by its id, is not copied again; where another fact was noted in it
since, what was written last counts, as it does of what a model's layers lose in lower precision. Another one of the
same case gets ``<case>@2``. Everything is copied first into a folder of its own inside the store, and only then moved
to its place: a merge that fails leaves the store as it was. Folders come from anywhere, so nothing in them is followed
out of them.
"""

from __future__ import annotations

import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import NamedTuple

from msgspec.structs import replace

from inferlens.errors import InferlensError, unwritable
from inferlens.record.files import files_under, plain_or_packed, read_unpacked, sha256, write_whole
from inferlens.record.quantization import KEPT, read
from inferlens.record.record import Record, decode, machine_name
from inferlens.record.store import LOG, PROFILE, RECORD, TRIALS, TUNING, claimed, made, of_a_tuning, safe_name

STAGING = ".merge-"  # how the name of the folder of a merge under way begins
HINT = "-o with another folder"


@dataclass
class Merged:
    """What a merge did: how many records were ``new``, ``known`` and ``rewritten``; whose they are; what was left."""

    new: int = 0
    known: int = 0
    rewritten: int = 0
    machines: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


class InStore(NamedTuple):
    """A record that is in the store, or on its way there: its file, the hash of its content, when it was written."""

    file: Path
    digest: str
    written: float


def merge(sources: Sequence[Path], output: Path, *, artefacts: bool = True) -> Merged:
    """Copies the records under ``sources`` into the store ``output``, which may have some already.

    Sources are folders at any height above records. Without ``artefacts`` only records, profiles and logs come along.
    Raises InferlensError if a source is no folder, there is no record in any, or ``output`` cannot be written.
    """
    for source in sources:
        if not source.is_dir():
            raise InferlensError(f"{source} is not a folder.", expected="folders with records", hint="inferlens bench")
    merged, known, rewritten = Merged(), dict[str, InStore](), dict[Path, Path]()
    begun, numbers = output.exists(), Counter[tuple[str, str]]()
    if begun:
        for file, record, digest in _records(output, Merged()):
            known[record.id] = InStore(file, digest, file.stat().st_mtime)
    staging = Path(tempfile.mkdtemp(dir=made(output, HINT), prefix=STAGING))
    try:
        copied = list(_copied(sources, output, staging, merged, known, rewritten, artefacts))
        if not copied and not known:
            what = f"There is no record in {', '.join(map(str, sources))}. {' '.join(merged.problems[:3])}"
            raise InferlensError(what.strip(), hint="inferlens bench")
        quantizations = list(_quantizations(sources, output, staging, merged))
        for folder, model, case in copied:
            place = claimed(output / model, case, HINT, first=numbers[model, case] + 1)
            numbers[model, case] = int(place.name.removeprefix(case).lstrip("@") or 1)
            folder.replace(place)
        for there, file in rewritten.items():
            _rewrite(there, file)
        for file, place in quantizations:
            file.replace(made(place.parent, HINT) / place.name)
    except OSError as error:
        raise unwritable(f"The folder {output}", error, HINT) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if not begun and not any(output.iterdir()):
            output.rmdir()
    return merged


def _copied(
    sources: Sequence[Path],
    output: Path,
    staging: Path,
    merged: Merged,
    known: dict[str, InStore],
    rewritten: dict[Path, Path],
    artefacts: bool,
) -> Iterator[tuple[Path, str, str]]:
    """Each new record's folder in ``staging``, and the names of the folders that it belongs in.

    Of records of the store that were ``rewritten`` the file there and the new one.
    """
    for source in sources:
        for file, record, digest in _records(source, merged, but=output.resolve()):
            merged.machines.add(machine_name(record.environment))
            merged.models.add(record.case.model)
            written, there = file.stat().st_mtime, known.get(record.id)
            if there and there.digest != digest and not _same_but_facts(record, there.file):
                merged.problems.append(f"{file} was left out. Another record has its id, {record.id}.")
            elif there and (there.digest == digest or written <= there.written):
                merged.known += 1
            elif there:
                merged.rewritten += 1
                known[record.id] = there._replace(digest=digest, written=written)
                if staging in there.file.parents:
                    known[record.id] = known[record.id]._replace(file=_rewrite(there.file, file))
                else:
                    rewritten[there.file] = file
            if there:
                continue
            folder = staging / str(merged.new)
            known[record.id] = InStore(folder / file.name, digest, written)
            folder.mkdir()
            for path in _beside(file, merged, artefacts):
                target = folder / path.relative_to(file.parent)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            merged.new += 1
            yield folder, safe_name(record.model.name), safe_name(record.case.folder)


def _quantizations(sources: Sequence[Path], output: Path, staging: Path, merged: Merged) -> Iterator[tuple[Path, Path]]:
    """Each model's last of a name: a copy in ``staging`` and its place, where none that is as new is there."""
    last: dict[Path, Path] = {}
    for file in (path for source in sources for path in files_under(source, KEPT)):
        try:
            if not _is_plain(file):
                raise InferlensError("It is a link, or no file.")
            read(file)
        except (OSError, InferlensError) as error:
            merged.problems.append(f"{file} was left out. {error}")
            continue
        place = output / file.resolve().parent.name / file.name
        there = last.get(place, place)
        if not there.exists() or there.stat().st_mtime < file.stat().st_mtime:
            last[place] = file
    for number, (place, file) in enumerate(last.items()):
        yield Path(shutil.copy2(file, staging / f"quantized-{number}")), place  # with its time, for the next merge


def _records(folder: Path, merged: Merged, but: Path | None = None) -> Iterator[tuple[Path, Record, str]]:
    """The records below a folder one by one, each with the hash of its content; what is none is a problem.

    Those of tunings are left: a tuning belongs to its machine. So are those in the folder ``but``.
    """
    tunings = [path.parent for path in files_under(folder, TRIALS) if path.parent.name == TUNING]
    merged.problems += [f"{tuning} was left out: a tuning belongs to its machine." for tuning in tunings]
    for file in files_under(folder, RECORD):
        cut_short = any(part.startswith(STAGING) for part in file.relative_to(folder).parts)  # of an earlier merge
        if cut_short or of_a_tuning(file, folder) or (but and but in file.absolute().parents):
            continue
        try:
            if not _is_plain(file):
                raise InferlensError("It is a link, or no file.")
            data = read_unpacked(file)
            record = decode(data)
            wrong = [artefact.path for artefact in record.artefacts if not _is_beside(artefact.path)]
            if wrong:
                raise InferlensError(f"It names a file outside its folder: '{wrong[0]}'.")
        except (OSError, InferlensError) as error:
            merged.problems.append(f"{file} was left out. {error}")
            continue
        yield file, record, sha256(data)


def _beside(record_file: Path, merged: Merged, artefacts: bool) -> Iterator[Path]:
    """The files of a record's folder that come along: no links, and nothing of another record below it."""
    yield record_file
    folders = [record_file.parent]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if path.is_dir() and not path.is_symlink():
                own = not plain_or_packed(path / RECORD).exists()
                folders += [path] if artefacts and own else []
            elif path.name.startswith(RECORD):
                continue
            elif not _is_plain(path):
                merged.problems.append(f"{path} was left out. It is a link, or no file.")
            elif artefacts or path.name == LOG or path.name.startswith(PROFILE):
                yield path


def _same_but_facts(record: Record, file: Path) -> bool:
    """Whether another file has the same record, but for what was noted in it later."""
    return replace(record, facts={}) == replace(decode(read_unpacked(file)), facts={})


def _rewrite(there: Path, file: Path) -> Path:
    """Puts a record's file in the place of another one, which may be packed otherwise; the new one."""
    target = there.with_name(file.name)
    write_whole(target, file.read_bytes())
    if target != there:
        there.unlink()
    return target


def _is_plain(file: Path) -> bool:
    """Whether it is a file itself: no link, pipe or device, which might be waited for or lead elsewhere."""
    return stat.S_ISREG(file.lstat().st_mode)


def _is_beside(path: str) -> bool:
    """Whether the path of an artefact stays in its record's folder."""
    pure = PurePath(path)
    return not pure.is_absolute() and ".." not in pure.parts
