"""Large models: a profile of 2,000 layers and 200 runs is kept, read and shown."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.layer_file import LAYERS, RUNS, large
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
