"""Traces that are written here are read here, and by TensorBoard's plugin where that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferlens.errors import InferlensError
from inferlens.trace import Category, read
from inferlens.trace.analysis import Analysis
from inferlens.trace.capture import SPAN, Capture, capture

torch = pytest.importorskip("torch")


def captured(folder: Path, what: Capture) -> list[Path]:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    return capture(lambda: model(torch.ones(2, 8)), folder, worker="pytorch-fp32-b2", what=what)


def test_steps_spans_and_what_was_asked_for(tmp_path: Path) -> None:
    what = Capture(wait=1, warmup=1, active=3, repeat=2, stacks=True, memory=True, shapes=True)
    paths = captured(tmp_path / "log" / "run", what)
    assert len(paths) == 2
    for path in paths:
        assert path.name.startswith("pytorch-fp32-b2.")
        assert path.name.endswith(".pt.trace.json.gz")
        trace = read(path)
        assert trace.notes == ()
        assert len(Analysis(trace).steps) == 3
        spans = trace.names_of(trace.rows(Category.ANNOTATION))
        assert spans.count(SPAN) == 3
        assert len(trace.allocations) > 0
        assert max(trace.scopes.shapes) > 0
        assert any(name.startswith("nn.Module: Linear") for name in trace.strings)


def test_little_is_recorded_unless_it_is_asked_for(tmp_path: Path) -> None:
    (path,) = captured(tmp_path, Capture(active=1))
    trace = read(path)
    assert (len(trace.allocations), len(trace.rows(Category.PYTHON)), max(trace.scopes.shapes)) == (0, 0, 0)


def test_counts_must_make_sense(tmp_path: Path) -> None:
    with pytest.raises(InferlensError, match="active is 0"):
        Capture(active=0)
    (tmp_path / "file").touch()
    with pytest.raises(InferlensError, match="cannot be made"):
        captured(tmp_path / "file", Capture())


def test_the_plugin_of_tensorboard_loads_it(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_tb_profiler.profiler.data", reason="torch-tb-profiler is not installed")
    (path,) = captured(tmp_path, Capture(active=2, shapes=True))
    loaded = data.RunProfileData.parse("worker", None, str(path), str(tmp_path))
    assert len(loaded.steps_names) == 2
    ours = {row["name"]: row["calls"] for row in Analysis(read(path)).operators().rows()}
    assert {each.name: each.calls for each in loaded.op_list_groupby_name} == ours
