"""What holds for all tests, and what is made once for all of them."""

from __future__ import annotations

import functools
import gc
import lzma
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

# One thread, here and in what tests start, where a test asks for no other number: threads that wait for each other on a
# busy machine take many times as long as one alone. Read when PyTorch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Inductor compiles in its own process, without workers that import PyTorch, and believes what the CPU says of its
# vectors, without a program for each kind. Read when Inductor is imported.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# Tests say how wide a terminal is where that matters; pytest-xdist and some shells say it for all.
os.environ.pop("COLUMNS", None)

CHECKOUT = os.path.realpath(Path(__file__).parents[1]) + os.sep

if TYPE_CHECKING:
    from inferlens.backends.base import Capabilities
    from inferlens.record.profile import Profile
    from inferlens.record.record import Record
    from tests.backends.torch_tensorrt.partitions import Made


@pytest.fixture(autouse=True)
def nothing_to_collect() -> None:
    """What is there before a test is left alone: measurements collect garbage, and to look at all of it takes long."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def operators_translated_once() -> Iterator[None]:
    """PyTorch's exporter to ONNX reads the source of its 500 operators in each call, which is half of a small one's."""
    with pytest.MonkeyPatch.context() as patch, suppress(ImportError):
        if "torch" in sys.modules:  # which tests that have no use for it do not wait for
            from torch.onnx._internal.exporter._registration import ONNXRegistry as Operators

            patch.setattr(Operators, "from_torchlib", staticmethod(functools.cache(Operators.from_torchlib)))
        yield


def cached_by(key: Callable[..., object], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes each result once; a key of ``None`` is computed anew each time."""
    results: dict[object, Any] = {}

    def cached(*arguments: Any, **options: Any) -> Any:
        name = key(*arguments, **options)
        if name is None:
            return function(*arguments, **options)
        if name not in results:
            results[name] = function(*arguments, **options)
        return results[name]

    return cached


def text_key(*arguments: object) -> object:
    """Return the values of the arguments; runs of a case count as the records that they are of."""
    from inferlens.analysis.samples import CaseRuns

    def key(argument: object) -> object:
        if isinstance(argument, CaseRuns):
            return tuple((record.id, record.run) for record in (*argument.records, *argument.later)), argument.of_runs
        return argument if isinstance(argument, str | bytes | int | None) else repr(argument)

    return tuple(map(key, arguments))


def file_key(path: Path, step: object = None) -> object:
    """Return the path of a file of this checkout; other files may change."""
    whole = os.path.realpath(path)
    return (whole, step) if whole.startswith(CHECKOUT) else None


def profile_key(profile: Profile, record: Record | None = None, **options: object) -> object:
    """Return what a profile and a record are known by."""
    return profile.id, profile.record, profile.level, record and record.id, tuple(sorted(options.items()))


@functools.cache
def example_caches() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return the functions that read files and work out what is shown of them, each with a cache."""
    from inferlens.analysis import evidence, samples
    from inferlens.record import store
    from inferlens.views import rows, trace_documents
    from inferlens.views.profiles import roofline

    keys: list[tuple[Any, str, Callable[..., object]]] = [
        (store, "read_record", file_key), (store, "_read_profile", file_key),
        (trace_documents, "load_analysis", file_key), (evidence, "roofline", profile_key),
        (roofline, "roofline", profile_key),
        *((rows, name, text_key) for name in ("_row", "case_numbers", "case_notes")),
    ]  # fmt: skip
    caches = [(module, name, cached_by(key, getattr(module, name))) for module, name, key in keys]
    caches.append((samples, "_steady_samples", functools.cache(samples._steady_samples.__wrapped__)))
    return [*caches, (lzma, "decompress", functools.cache(lzma.decompress))]


@pytest.fixture(scope="module")
def examples_read_once() -> Iterator[None]:
    """Files of this checkout are read and worked out once. Garbage is collected between tests alone."""
    gc.disable()
    with pytest.MonkeyPatch.context() as patch:
        for module, name, function in example_caches():
            patch.setattr(module, name, function)
        yield
    gc.enable()


@pytest.fixture(scope="session")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Partitions of real models, and a run of the command, made by the first process that needs them."""
    from tests.backends.torch_tensorrt.partitions import made

    folder = tmp_path_factory.getbasetemp()
    return made(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)


@pytest.fixture
def without_torch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts do not find PyTorch, which takes two seconds to import."""
    folder = tmp_path_factory.mktemp("without-torch")
    (folder / "torch.py").write_text("raise ImportError('PyTorch is left out of this test')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))
    monkeypatch.syspath_prepend(folder)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """To draw takes long, and how a picture looks is no matter of the test."""
    from inferlens.views import picture

    drawn = SimpleNamespace(vegalite_to_svg=lambda _: "<svg/>", vegalite_to_png=lambda *_, **__: b"a picture")
    monkeypatch.setattr(picture, "converter", lambda: drawn)


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be done in processes of its own is done in this one."""
    from tests.commands import stay

    stay(monkeypatch)


@pytest.fixture
def surveyed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What models are, and what backends can do, is asked in this process; cases have processes of their own."""
    from inferlens.execution import cases, child
    from tests.commands import launch

    here = SimpleNamespace(launch=launch, variables_for=child.variables_for)
    monkeypatch.setattr(cases, "child", here)


@pytest.fixture
def probed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What backends can do is asked in this process, also for other interpreters; all else has processes of its own."""
    from inferlens.execution import cases

    def probe(names: Sequence[str], python: str = "") -> dict[str, Capabilities]:
        return cases.capabilities(cases.NamesJob(names=tuple(names)), None)

    monkeypatch.setattr(cases, "probe", probe)


@pytest.fixture
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of a tuning are short, and its finalists are built once."""
    from tests.commands import shorten

    shorten(monkeypatch)
