"""Large models: a profile of 2,000 layers and 200 runs is kept, read and shown; a call-back costs the same in each."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.layer_file import LAYERS, RUNS, large
from inferlens.backends.profiling import module_hooks
from inferlens.record.layer_profile import Profile
from inferlens.record.profile_store import load_profiles, save
from inferlens.views.profiled import modules, parts, perfetto
from inferlens.views.profiled.cases import groups, of_level
from inferlens.views.table import render

PATIENCE = 60  # seconds in which, on a busy machine too, everything has to be done


@pytest.fixture(scope="module")
def made() -> Profile:
    return large(LAYERS, RUNS)


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    begin = time.process_time()
    yield
    assert time.process_time() - begin < PATIENCE


def test_the_file_comes_back_as_it_was_written(tmp_path: Path, made: Profile) -> None:
    assert made.layers
    assert (len(made.layers.layers), len(made.layers.whole)) == (2000, 200)
    save(tmp_path, made)
    assert load_profiles([tmp_path]).profiles == [made]


def test_every_view_draws_it(tmp_path: Path, made: Profile) -> None:
    save(tmp_path, made)
    loaded = load_profiles([tmp_path])
    table = parts.document("layer", of_level(loaded, "layer"))
    assert len(json.loads(render(table, "json"))["cases"][0]["rows"]) == LAYERS
    assert "2,000 rows" in render(table)
    assert "unfolded" in render(modules.document(groups(loaded)))
    loaded.profiles = [large(LAYERS, RUNS // 10)]  # of all runs it takes ten seconds
    trace, _ = perfetto.render(loaded)
    assert trace.count(b'"cat":"layers"') == LAYERS * RUNS // 10


class Chain(nn.Module):
    """So many modules that do nothing, one after the other."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Identity() for _ in range(count))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            image = part(image)
        return image


@contextmanager
def counted(found: Counter[str]) -> Iterator[None]:
    """Counts the calls of the hooks' functions, and what these call that is not Python."""

    def see(frame: Any, event: str, _: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename == module_hooks.__file__:
            found[frame.f_code.co_name] += 1

    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_a_call_back_does_the_same_in_every_model_and_every_run() -> None:
    each = []
    for count, runs in ((10, 1), (300, 1), (10, 50)):
        found: Counter[str] = Counter()
        marks: list[int] = []
        moments, module = module_hooks.HostMoments(), Chain(count)
        with module_hooks.timing_hooks(list(module.modules()), marks, moments.take), counted(found):
            for _ in range(runs):
                module(torch.zeros(1))
        calls = runs * (count + 1)
        assert (len(marks), len(moments.read())) == (2 * calls, 2 * calls)
        each.append({name: number / calls for name, number in found.items()})
    assert each[0] == each[1] == each[2]
    assert sum(each[0].values()) < 20
