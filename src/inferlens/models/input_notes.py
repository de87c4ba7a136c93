"""What a TorchScript file or an exported program says of its inputs: a note, a small JSON in the archive itself.

PyTorch keeps neither names nor shapes of the inputs of TorchScript, and of an exported program those of ``forward``
alone. Whoever reads a note does not know who wrote it: it is data, and refused where nothing sane could be fed by it.
"""

from __future__ import annotations

import math
import re
import zipfile
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct

from inferlens.errors import InferlensError
from inferlens.models.provenance import check_shapes
from inferlens.models.sources.program_check import PLAIN
from inferlens.spec.case import DTYPES, TensorSpec

NAME = "inferlens.inputs.json"
PLACE = re.compile(rf"(^|/)extra(_files)?/{re.escape(NAME)}$")  # in archives of either kind
LARGEST = 1 << 20  # bytes of a note
MOST_INPUTS = 1000
MOST_ELEMENTS = 1 << 32  # of all inputs together
LONGEST_NAME = 200


class Note(Struct, frozen=True, forbid_unknown_fields=True):
    """The inputs, in the order of the arguments."""

    inputs: tuple[TensorSpec, ...]
    schema: Literal["inferlens.inputs/1"] = "inferlens.inputs/1"


def write(specs: tuple[TensorSpec, ...], floats: str) -> dict[str, str]:
    """Extra files for PyTorch to write: the note of ``specs``, whose floats are of the type ``floats`` in the file.

    None for inputs that would be refused when they are read, such as names that hold line ends.
    """
    specs = tuple(msgspec.structs.replace(spec, dtype=floats) if "float" in spec.dtype else spec for spec in specs)
    try:
        check(specs)
    except ValueError:
        return {}
    return {NAME: msgspec.json.encode(Note(specs)).decode()}


def read(path: Path) -> tuple[TensorSpec, ...]:
    """The inputs that the archive tells of; none if it has no note.

    Raises:
        InferlensError: if the note makes no sense.
    """
    with zipfile.ZipFile(path) as archive:
        notes = [entry for entry in archive.infolist() if PLACE.search(entry.filename)]
        if not notes:
            return ()
        try:
            if len(notes) > 1 or notes[0].file_size > LARGEST:
                raise ValueError("there are several notes" if len(notes) > 1 else "the note is too long")
            specs = msgspec.json.decode(archive.read(notes[0]), type=Note).inputs
            check(specs)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise InferlensError(
                f"What {path} says of its inputs makes no sense: {error}.", hint="export it again"
            ) from error
    return specs


def check(specs: tuple[TensorSpec, ...]) -> None:
    """What the types of the fields do not say.

    Raises:
        ValueError: if these are no inputs that could be fed.
    """
    names = {spec.name for spec in specs}
    if not 0 < len(specs) <= MOST_INPUTS or len(names) < len(specs):
        raise ValueError("it has no inputs, or too many, or two of one name")
    if not all(0 < len(name) <= LONGEST_NAME and PLAIN.fullmatch(name) for name in names):
        raise ValueError("an input's name is none")
    check_shapes(specs)
    if sum(math.prod(spec.profile[2]) + math.prod(spec.shape) for spec in specs) > 2 * MOST_ELEMENTS:
        raise ValueError("its inputs are too large")
    for spec in specs:
        if spec.dtype not in DTYPES:
            raise ValueError(f"its input '{spec.name}' has an unknown type")
        if not _is_range(spec):
            raise ValueError(f"the range of its input '{spec.name}' is empty, or not of its type")


def _is_range(spec: TensorSpec) -> bool:
    if spec.low is None or spec.high is None:
        return spec.low is spec.high
    if "int" not in spec.dtype:
        return spec.low < spec.high
    kind = np.iinfo(spec.dtype)
    return kind.min <= spec.low < spec.high <= kind.max + 1
