"""The precision that a file of PyTorch is in: its weights' float type, told without unpickling anything."""

from __future__ import annotations

import math
import pickletools
import zipfile
from collections import Counter
from pathlib import Path

import msgspec

# torch._export.serde.schema.ScalarType
EXPORTED_TYPES = {6: "fp16", 7: "fp32", 13: "bf16"}
STORAGES = {"torch HalfStorage": "fp16", "torch FloatStorage": "fp32", "torch BFloat16Storage": "bf16"}
LARGEST = 1 << 26  # bytes of a description of weights; longer ones are none


def file_precision(path: Path) -> str:
    """The type of most weights of an exported program, or of all of a TorchScript archive; fp32 where that is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.file_size > LARGEST:
                    continue
                if entry.filename.endswith("/model_weights_config.json"):
                    return _exported(archive.read(entry))
                if entry.filename.endswith("/data.pkl"):
                    return _script(archive.read(entry))
    except Exception:  # a broken file is told when it is opened
        return "fp32"
    return "fp32"


def _exported(config: bytes) -> str:
    sizes: Counter[str] = Counter()
    for entry in msgspec.json.decode(config)["config"].values():
        meta = entry["tensor_meta"]
        if meta["dtype"] in EXPORTED_TYPES:
            sizes[EXPORTED_TYPES[meta["dtype"]]] += math.prod(size["as_int"] for size in meta["sizes"])
    return sizes.most_common(1)[0][0] if sizes else "fp32"


def _script(pickle: bytes) -> str:
    named = {str(argument) for opcode, argument, _ in pickletools.genops(pickle) if opcode.name == "GLOBAL"}
    found = {STORAGES[name] for name in named if name in STORAGES}
    return found.pop() if len(found) == 1 else "fp32"
