"""What a TorchScript file or an exported program says of its inputs: a note, a small JSON in the archive itself.

PyTorch keeps neither names nor shapes of the inputs of TorchScript, and of an exported program those of ``forward``
alone. Whoever reads a note does not know who wrote it: it is data, and refused where nothing sane could be fed by it.
"""

from __future__ import annotations

import math
import re
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct

from inferlens.errors import InferlensError
from inferlens.models.provenance import shapes_fit
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
    return {NAME: msgspec.json.encode(Note(specs)).decode()} if _can_be_fed(specs) else {}


def read(path: Path) -> tuple[TensorSpec, ...]:
    """The inputs that the archive tells of; none if it has no note.

    Raises:
        InferlensError: if the note makes no sense.
    """
    with zipfile.ZipFile(path) as archive:
        notes = [entry for entry in archive.infolist() if PLACE.search(entry.filename)]
        if not notes:
            return ()
        specs: tuple[TensorSpec, ...] = ()
        if len(notes) == 1 and notes[0].file_size <= LARGEST:
            with suppress(msgspec.DecodeError, ValueError, RecursionError):
                specs = msgspec.json.decode(archive.read(notes[0]), type=Note).inputs
    if not _can_be_fed(specs):
        raise InferlensError(f"What {path} says of its inputs makes no sense.", hint="export it again")
    return specs


def _can_be_fed(specs: tuple[TensorSpec, ...]) -> bool:
    """What the types of the fields do not say of inputs."""
    names = {spec.name for spec in specs}
    return (
        0 < len(specs) <= MOST_INPUTS
        and len(names) == len(specs)
        and all(0 < len(name) <= LONGEST_NAME and PLAIN.fullmatch(name) for name in names)
        and shapes_fit(specs)
        and sum(math.prod(spec.profile[2]) + math.prod(spec.shape) for spec in specs) <= 2 * MOST_ELEMENTS
        and all(spec.dtype in DTYPES and _is_range(spec) for spec in specs)
    )


def _is_range(spec: TensorSpec) -> bool:
    if spec.low is None or spec.high is None:
        return spec.low is spec.high
    if "int" not in spec.dtype:
        return spec.low < spec.high
    kind = np.iinfo(spec.dtype)
    return kind.min <= spec.low < spec.high <= kind.max + 1
