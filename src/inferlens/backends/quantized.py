"""What the backends that quantize share: how many bits the CPU bears, what is too little, and the quantized model.

That lies beside the record of the case whose process made it, and is what is loaded later: the data that it was
calibrated with need not be there any more.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from inferlens.backends.base import Noted, Preparation
from inferlens.errors import Unsupported
from inferlens.models.model import Model
from inferlens.models.work.torch_module import taken_apart
from inferlens.spec.case import Case

BESIDE = "quantized"  # the folder beside a record, and the kind of the artefact


def seven_bits() -> bool:
    """Whether one factor of a product has to do with 7 bits: without VNNI, CPUs add two products up in 16 bits."""
    try:
        return "vnni" not in Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return True


def check_share(
    share: float | None, model: Model, case: Case, preparation: Preparation, why: str, *, calibrated: bool = True
) -> None:
    """Refuses a model of which nothing is quantized; else notes the share of its multiply-adds that is, if known.

    ``calibrated``: whether ranges were found with data, rather than are in every call.
    """
    if share == 0 and not case.keep:
        raise Unsupported(f"Nothing of '{model.name}' can be quantized: {why}.")
    preparation.facts["quantized_share"] = None if share is None else round(float(share), 3)
    preparation.facts["calibrated"] = calibrated


def from_cache(made: Path, preparation: Preparation, write: Callable[[Path, Noted], None]) -> Path:
    """The quantized file ``made`` of the cache; if it is not there ``write`` makes it, in a folder of its own.

    What lies beside it with its stem, such as weights, comes along first: where the file is, all is.
    """
    with preparation.phase("quantize") as noted:
        if made.exists() and not preparation.rebuild:
            noted.note = "cached"
            return made
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
            written = Path(scratch) / made.name
            write(written, noted)
            for path in sorted(written.parent.glob(f"{made.stem}.*"), key=lambda path: path == written):
                path.rename(made.with_name(path.name))
    return made


def measured(preparation: Preparation, suffix: str) -> Path | None:
    """The quantized file with ``suffix`` beside the record whose case is loaded; ``None`` where there is none."""
    path = preparation.exported / BESIDE if preparation.kept_only and preparation.exported else Path()
    return next(path.glob(f"*{suffix}"), None) if path.name else None


def beside_record(preparation: Preparation, made: Path) -> Path:
    """``made``, a quantized file of the cache; an artefact of the case's first process, as is what has its stem."""
    if preparation.built:
        return made
    folder = preparation.folder / BESIDE
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(made.parent.glob(f"{made.stem}.*")):
        (folder / path.name).unlink(missing_ok=True)  # of the same case, prepared once more
        try:
            os.link(path, folder / path.name)  # which takes no room
        except OSError:
            shutil.copyfile(path, folder / path.name)
        preparation.keep(folder / path.name, BESIDE if path == made else f"{BESIDE} weights")
    return made


def flops_by_module(module: Any, feed: tuple[Any, ...]) -> dict[str, float]:
    """FLOPs of the products in each module, by its path, and of all by the empty one; empty if it cannot be followed.

    Nothing is computed: tensors have no values.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    try:
        with taken_apart(), FakeTensorMode(allow_non_fake_inputs=True), counter, torch.no_grad():
            module(*feed)
    except Exception:  # code whose path depends on values, for one
        return {}
    own = f"{type(module).__name__}."
    counts = {name: float(sum(item.values())) for name, item in counter.get_flop_counts().items()}
    return {"": counts["Global"]} | {
        name.removeprefix(own): count for name, count in counts.items() if name.startswith(own)
    }


def share_of(work: dict[str, float], quantized: Collection[str]) -> float | None:
    """The share of the work that is in the ``quantized`` modules; ``None`` if the work is not known."""
    if not quantized:
        return 0.0
    return min(sum(work.get(name, 0.0) for name in quantized) / work[""], 1.0) if work.get("") else None
