"""What an event of a trace is about: the categories that PyTorch's versions have written, by old names and new."""

from __future__ import annotations

from enum import IntEnum


class Category(IntEnum):
    """Category of an event; ``OTHER`` is any that is not known here."""

    OTHER = 0
    OPERATOR = 1
    ANNOTATION = 2
    PYTHON = 3
    RUNTIME = 4
    DRIVER = 5
    KERNEL = 6
    MEMCPY = 7
    MEMSET = 8
    GPU_ANNOTATION = 9
    SPAN = 10
    OVERHEAD = 11
    SYNCHRONISATION = 12


GPU = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
CALLS = (Category.RUNTIME, Category.DRIVER)
SCOPES = (Category.OPERATOR, Category.ANNOTATION)

# Kineto's names of today, then those of before PyTorch 1.12; of CUDA, ROCm (which uses CUDA's) and XPU.
_NAMES = {
    "cpu_op": Category.OPERATOR,
    "user_annotation": Category.ANNOTATION,
    "python_function": Category.PYTHON,
    "cuda_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "cuda_driver": Category.DRIVER,
    "xpu_driver": Category.DRIVER,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "trace": Category.SPAN,
    "overhead": Category.OVERHEAD,
    "cuda_sync": Category.SYNCHRONISATION,
    "operator": Category.OPERATOR,
    "runtime": Category.RUNTIME,
    "memcpy": Category.MEMCPY,
    "memset": Category.MEMSET,
    "python": Category.PYTHON,
    "pythonfunction": Category.PYTHON,
    "cpu_instant_event": Category.OTHER,
}


# What was in the category of operators before there was one of annotations.
_ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")


def is_annotation(name: str) -> bool:
    """Whether an event among the operators is an annotation by its name."""
    return name.startswith(_ANNOTATIONS)


def category_of(name: str) -> Category:
    """The category that a trace calls ``name``."""
    return _NAMES.get(name.lower(), Category.OTHER)
