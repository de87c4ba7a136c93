"""Files that lie about with any Python, for the network of ``magika`` that tells what a file is from its bytes."""

from __future__ import annotations

import json
import os
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.trained import carried

Array = np.ndarray[Any, Any]
KINDS = {
    ".bz2": "bzip", ".c": "c", ".cc": "cpp", ".cpp": "cpp", ".css": "css", ".csv": "csv", ".f90": "fortran",
    ".gz": "gzip", ".html": "html", ".hpp": "cpp", ".jpg": "jpeg", ".js": "javascript", ".json": "json",
    ".md": "markdown", ".npy": "npy", ".npz": "npz", ".onnx": "onnx", ".pkl": "pickle", ".png": "png",
    ".py": "python", ".rst": "rst", ".so": "elf", ".svg": "svg", ".toml": "toml",
    ".ttf": "ttf", ".wav": "wav", ".yaml": "yaml", ".zip": "zip", ".exe": "pebin",
}  # fmt: skip
END, PADDING, READ = 1024, 256, 4096


def found(each: int) -> list[tuple[Path, str]]:
    """Files of Python's own folders, at most so many of each kind, and what they are."""
    kinds: dict[str, list[Path]] = {}
    for root in (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")):
        for folder, below, names in os.walk(root):
            below[:] = sorted(name for name in below if name != "__pycache__")
            for name in sorted(names):
                suffix = Path(name).suffix
                of_kind = kinds.setdefault(suffix, []) if suffix in KINDS else []
                if suffix in KINDS and len(of_kind) < each * 8:
                    of_kind.append(Path(folder, name))
    chosen = []
    for suffix, paths in sorted(kinds.items()):
        large = [path for path in paths if path.stat().st_size > 256]
        chosen += [(path, KINDS[suffix]) for path in large[:: max(1, len(large) // each)][:each]]
    return chosen


def features(path: Path) -> Array:
    """The first and the last bytes of a file without the white space around them, as magika takes them."""
    with path.open("rb") as file:
        first = file.read(READ)
        file.seek(max(0, path.stat().st_size - READ))
        last = file.read(READ)
    first, last = first.lstrip()[:END], last.rstrip()[-END:]
    return np.array([*first, *[PADDING] * (END - len(first)), *[PADDING] * (END - len(last)), *last], np.int32)


def network() -> Path:
    """The file of the network."""
    return next(carried("magika").glob("models/*/model.onnx"))


def write(folder: Path, each: int) -> None:
    """Writes half of the files to ``files.npz`` and half of them, with labels, to ``other_files.npz``."""
    names: list[str] = json.loads((network().parent / "config.min.json").read_text())["target_labels_space"]
    chosen = found(each)
    bytes_of = np.stack([features(path) for path, _ in chosen])
    label = np.array([names.index(kind) for _, kind in chosen])
    np.savez(folder / "files.npz", bytes=bytes_of[::2])
    np.savez(folder / "other_files.npz", bytes=bytes_of[1::2], label=label[1::2])
