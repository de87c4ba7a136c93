"""Writes data for the trained models, and prints the commands that measure with it: see the package."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from benchmarks.trained import files, texts


def main(folder: Path) -> None:
    """Arrays as ``--calibration`` and ``--accuracy`` read them."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "lines.npz", x=texts.lines(1, 64)[0])
    np.savez(folder / "pages.npz", x=texts.pages(1, 32)[0])
    files.write(folder, 10)
    for task, shape, data, function in (
        ("rec", "1x3x48x320", "lines", "evaluate_reading"),
        ("det", "1x3x256x320", "pages", "evaluate_finding"),
    ):
        print(f"inferlens bench {texts.network(task)} --input x={shape} --precision fp32,int8 \\")
        print(f"  --calibration {folder}/{data}.npz --accuracy benchmarks.trained.texts:{function}")
    print(f"inferlens bench {files.network()} --input bytes=1x2048:int32:0..256 --precision fp32,int8 \\")
    print(f"  --calibration {folder}/files.npz --accuracy {folder}/other_files.npz")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
