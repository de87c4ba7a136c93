"""A plan in a file, and its provenance in another: both are written, or neither."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from inferlens.errors import InferlensError
from inferlens.models import provenance
from inferlens.models.provenance import Provenance
from inferlens.record.files import write_whole


def write_plan(path: Path, plan: bytes, made: Provenance) -> None:
    """Writes a plan and its provenance beside it; if that fails, what was there before stays.

    Should the process end between the two, the hash in the provenance tells that it is of another plan.

    Raises:
        InferlensError: if they cannot be written, with the reason.
    """
    beside = provenance.beside(path)
    for each in (path, beside):
        if each.is_dir():
            raise InferlensError(f"{each} is a folder, so {path} cannot be written.", hint="another name")
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".inferlens-") as folder:
            new = Path(folder) / path.name
            write_whole(new, plan)
            provenance.write(new, made)
            before = beside.read_bytes() if beside.is_file() else None
            os.replace(provenance.beside(new), beside)
            try:
                os.replace(new, path)
            except BaseException:
                _restore(beside, before)
                raise
    except OSError as error:
        raise InferlensError(
            f"{path} cannot be written: {error.strerror or error}.", hint="a folder with room that you may write to"
        ) from error


def _restore(path: Path, before: bytes | None) -> None:
    if before is None:
        path.unlink(missing_ok=True)
    else:
        write_whole(path, before)
