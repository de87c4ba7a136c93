"""What quantizing a model to a file gave: a :class:`Quantization`. Data alone; no framework is needed to show it.

One that says what each layer loses is kept beside the model's records, as ``quantized-int8-onnxruntime.json``: by its
precision and backend, in the place of the one before it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from inferlens.record.display import Struct
from inferlens.record.files import decoded, read_unpacked, write_whole
from inferlens.record.store import made
from inferlens.spec.case import Case

SCHEMA = "inferlens.quantization/1"
KEPT = "quantized-*.json"


class OutputError(Struct, frozen=True):
    """How far an output is from that in fp32 over all samples: relative L2 error, and cosine."""

    rel_l2: float
    cosine: float


class LayerError(Struct, frozen=True):
    """A layer that was quantized.

    Attributes:
        name: as ``--keep`` takes it.
        share: of the model's multiply-adds.
        error: relative L2 error of the model's outputs where this layer alone is quantized, of the worst output.
    """

    name: str
    kinds: tuple[str, ...]
    share: float
    error: float


class Written(Struct, frozen=True, kw_only=True):
    """A model that was quantized but for the layers ``keep``, written, and run.

    Attributes:
        share: of the multiply-adds that are quantized; ``None`` where that cannot be counted.
        top1: share of samples whose largest element of the first output is that in fp32, if it is scores of classes.
        accuracy, reference_accuracy: of it and of fp32, in ``metric``, on the data that was named for it.
        accuracy_share: whether these are shares, as of hits.
        accuracy_drop, accuracy_drop_low, accuracy_drop_high: how far it is below fp32, sample by sample, with the
            95 % interval; as in the tables of ``inferlens bench``.
    """

    keep: str
    share: float | None
    outputs: tuple[OutputError, ...]
    top1: float | None = None
    metric: str = ""
    accuracy: float | None = None
    reference_accuracy: float | None = None
    accuracy_share: bool = True
    accuracy_drop: float | None = None
    accuracy_drop_low: float | None = None
    accuracy_drop_high: float | None = None

    @property
    def error(self) -> float:
        """Of the worst output."""
        return max((output.rel_l2 for output in self.outputs), default=0.0)


class Quantization(Struct, frozen=True, kw_only=True):
    """A model that was quantized to a file, what it is worth, and what was tried on the way.

    Attributes:
        path: the file; empty if no attempt kept the limit, so that none was written.
        best: what was written, or, if nothing was, the attempt that came nearest to the limit.
        samples: of the calibration data, that outputs were compared on.
        size_before, size: bytes of the graph in fp32, and of what was written.
        layers: those that were quantized, the worst first, where that was asked for or needed.
        limit: the limit that it keeps, as it was asked for, such as ``error=1e-2``; empty if none was.
        run_by: the backend and variant that ran what was written, for all that is said of it.
        not_run: why that is not the backend that it was written for; empty if it is.
    """

    schema: str = SCHEMA
    path: str
    case: Case
    best: Written
    samples: int
    size_before: int
    size: int
    seconds: float
    layers: tuple[LayerError, ...] = ()
    limit: str = ""
    attempts: tuple[Written, ...] = ()
    run_by: str = ""
    not_run: str = ""


def name_of(quantization: Quantization) -> str:
    """The name of its file."""
    return KEPT.replace("*", f"{quantization.case.precision}-{quantization.case.backend}")


def save(folder: Path, quantization: Quantization) -> None:
    """Writes it into the folder of the model's records, if it says what each layer loses."""
    if quantization.layers:
        write_whole(made(folder) / name_of(quantization), msgspec.json.encode(quantization))


def read(file: Path) -> Quantization:
    """The one in a file. Raises InferlensError if there is none, OSError if it cannot be read."""
    return decoded(read_unpacked(file), Quantization, SCHEMA, "quantization")
