"""What is kept of a trace beside it is what was read, and is not used when the trace is another one."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from inferlens.trace import Trace, read
from inferlens.trace.reading import read as cache
from tests.trace.samples import event, of_torch, text, training

pytest.importorskip("polars")


@pytest.fixture(autouse=True)
def _keeps_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(cache, "_SETTLED", -1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(training())
    return path


def kept(path: Path) -> Path:
    return path.with_name(path.name + cache.SUFFIX)


def same(first: Trace, second: Trace) -> bool:
    pairs = [(getattr(first, name), getattr(second, name)) for name in cache._MAIN]
    for part, form in cache._PARTS.items():
        one, other = getattr(first, part), getattr(second, part)
        pairs += [(getattr(one, each.name), getattr(other, each.name)) for each in fields(form)]
    equal = all(
        a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f") and a.shape == b.shape
        for a, b in pairs
    )
    texts = ("strings", "texts", "threads", "about", "notes")
    return equal and all(getattr(first, name) == getattr(second, name) for name in texts)


@pytest.mark.parametrize("data", [training(), training()[:-900], b"[]", None], ids=["GPU", "cut", "empty", "torch"])
def test_what_is_kept_is_what_was_read(data: bytes | None, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(of_torch() if data is None else data)
    first = cache.read_cached(path)
    assert same(first, read(path))
    monkeypatch.setattr(cache, "read", None)  # it must not be read again
    assert same(first, cache.read_cached(path))


def test_a_change_that_keeps_size_and_time_is_seen(path: Path) -> None:
    path.write_bytes(text(event("one", 1, 1)))
    cache.read_cached(path)
    before = path.stat()
    path.write_bytes(text(event("two", 1, 1)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert cache.read_cached(path).strings == ("two",)


@pytest.mark.parametrize(("name", "value"), [("_SETTLED", 2.0), ("LEAST_SECONDS", 1.0)], ids=["new", "small"])
def test_what_was_just_written_or_is_small_is_not_kept(
    name: str, value: float, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, name, value)
    cache.read_cached(path)
    assert not kept(path).exists()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_damaged_file_is_as_good_as_none(share: float, path: Path) -> None:
    first = cache.read_cached(path)
    data = kept(path).read_bytes()
    kept(path).write_bytes(data[: int(len(data) * share)])
    assert same(first, cache.read_cached(path))


def test_a_folder_that_cannot_be_written_to(path: Path) -> None:
    kept(path).mkdir()
    assert same(cache.read_cached(path), read(path))
