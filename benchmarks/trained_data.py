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
    for seed, count, name in ((1, 64, "turned"), (2, 512, "other_turned")):
        images, label = texts.lines(seed, count, texts.TURNED, turned=True)[0], np.arange(count) % 2
        np.savez(folder / f"{name}.npz", x=images, label=label)
    files.write(folder, 40)
    for network, inputs, data, accuracy in (
        (texts.network("rec"), "x=1x3x48x320", "lines", "benchmarks.trained.texts:evaluate_reading"),
        (texts.network("det"), "x=1x3x256x320", "pages", "benchmarks.trained.texts:evaluate_finding"),
        (texts.network("cls"), "x=1x3x48x192", "turned", f"{folder}/other_turned.npz"),
        (files.network(), "bytes=1x2048:int32:0..256", "files", f"{folder}/other_files.npz"),
    ):
        print(f"inferlens bench {network} --input {inputs} --precision fp32,int8 \\")
        print(f"  --calibration {folder}/{data}.npz --accuracy {accuracy}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
