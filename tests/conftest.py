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

# Tests say how wide a terminal is where that matters; pytest-xdist and some shells say it for all.
os.environ.pop("COLUMNS", None)

if TYPE_CHECKING:
    from inferlens.backends.base import Capabilities
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


@functools.cache
def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function for all tests of this process, with a cache."""
    return functools.cache(function)


def _key(argument: object) -> object:
    """What tells an argument from another: of the runs of a case, the records that they are."""
    from inferlens.analysis.samples import CaseRuns

    if isinstance(argument, CaseRuns):
        return tuple((record.id, record.run) for record in (*argument.records, *argument.later)), argument.of_runs
    return argument if isinstance(argument, str | bytes | int | None) else repr(argument)


@functools.cache
def remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function for all tests of this process, which works out each result once."""
    results: dict[object, Any] = {}

    def kept(*arguments: object) -> Any:
        key = tuple(map(_key, arguments))
        if key not in results:
            results[key] = function(*arguments)
        return results[key]

    return kept


@pytest.fixture(scope="module")
def examples_read_once() -> Iterator[None]:
    """Records of this checkout's files are read, and what counts and is shown of them is worked out, once."""
    from inferlens.analysis import samples
    from inferlens.record import store
    from inferlens.views import rows

    read, root = store.read_record, Path(__file__).resolve().parents[1]
    kept = once(read)

    def read_once(file: Path) -> Record:
        path = file.resolve()
        return kept(path) if path.is_relative_to(root) else read(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lzma, "decompress", once(lzma.decompress))
        patch.setattr(store, "read_record", read_once)
        patch.setattr(samples, "_steady_samples", once(samples._steady_samples.__wrapped__))
        for name in ("_row", "case_numbers", "case_notes"):
            patch.setattr(rows, name, remembering(getattr(rows, name)))
        yield


@pytest.fixture(scope="session")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Partitions of real models, and a run of the command."""
    from tests.backends.torch_tensorrt.partitions import made

    return made(tmp_path_factory.mktemp("partitions"))


@pytest.fixture
def without_torch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts do not find PyTorch, which takes two seconds to import."""
    folder = tmp_path_factory.mktemp("without-torch")
    (folder / "torch.py").write_text("raise ImportError('PyTorch is left out of this test')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))
    monkeypatch.syspath_prepend(folder)


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
