"""Trained models that Python packages carry, with real data for them: ``python -m benchmarks.trained_data FOLDER``.

Nothing is downloaded, and the packages are not imported. Data to calibrate with and data to evaluate on are different
samples, and both are the same in every run.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path


def carried(package: str) -> Path:
    """The folder of an installed package. Raises ModuleNotFoundError if there is none."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"The package {package} is not installed.")
    return Path(spec.origin).parent
