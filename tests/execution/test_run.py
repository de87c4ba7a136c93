"""From Python: names, live modules, options; real backends on a tiny real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import inferlens
from inferlens import InferlensError
from inferlens.backends.fake import FakeRunner
from inferlens.errors import Unsupported
from inferlens.execution import scheduler
from inferlens.execution import subprocess as processes
from inferlens.execution.expand import Planned
from inferlens.execution.protocol import Observer, TaskResult
from inferlens.execution.subprocess import Outcome
from inferlens.models.model import ModelInfo, Origin
from inferlens.spec.case import Case
from inferlens.spec.plan import Plan


class Tiny(torch.nn.Module):
    """A convolution, a norm, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        self.head = torch.nn.Linear(8, 12)

    def forward(self, image: torch.Tensor) -> dict[str, Any]:
        features = self.body(image)
        return {"scores": self.head(features.mean((2, 3))), "features": [features]}


REAL = "pytorch,torchscript:trace,torchscript:script,onnxruntime:cpu,openvino:cpu"


@pytest.mark.usefixtures("one_process")
def test_a_live_module_runs_on_every_backend_and_agrees(tmp_path: Path) -> None:
    records = inferlens.bench(
        Tiny().eval(),
        torch.randn(2, 3, 16, 16),
        backend=REAL,
        iterations=20,
        warmup=3,
        output=str(tmp_path),
        device="cpu",
    )
    assert [record.case.backend_label for record in records] == REAL.split(",")
    for record in records:
        label = record.case.backend_label
        if label == "torchscript:script":  # the source of a class in a test file can be read, so this works too
            assert record.status in ("ok", "unsupported")
            continue
        assert record.status == "ok", (label, record.reason, record.output_tail)
        assert record.agreement is not None
        assert record.agreement.agrees, (label, record.agreement)
        assert len(record.samples("latency")) == 20
        assert record.batch == 2
        assert record.memory.host_peak
        assert [phase.name for phase in record.phases][-3:] == ["first inference", "warm-up", "steady state"]
    folders = {path.parent.name for path in tmp_path.glob("Tiny/*/record.json")}
    assert "pytorch-fp32-b2-cpu" in folders


def test_the_check_catches_a_backend_that_computes_something_else(tmp_path: Path) -> None:
    """Dropout in train mode answers differently every time: the same model disagrees with itself.

    It is a live module too, and goes from this process to those where the reference and the case run.
    """

    class Restless(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x, 0.5, training=True)

    (record,) = inferlens.bench(
        Restless(), torch.randn(4, 64), backend="pytorch", device="cpu", iterations=5, output=tmp_path
    )
    assert record.status == "ok"
    assert record.agreement is not None
    assert record.agreement.agrees is False
    assert not record.ranked


@pytest.mark.usefixtures("one_process")
def test_single_values_lists_and_texts_with_commas_are_the_same_also_of_models(tmp_path: Path) -> None:
    common: dict[str, Any] = {"iterations": 5, "output": str(tmp_path)}
    one = inferlens.bench(["fake:a", "fake:b"], backend="fake:steady,fake:fast", batch="1,2", **common)
    two = inferlens.bench(["fake:a", "fake:b"], backend=["fake:steady", "fake:fast"], batch=[1, 2], **common)
    assert [record.case for record in one] == [record.case for record in two]
    assert [record.model.name for record in one] == ["a"] * 4 + ["b"] * 4
    assert (len({record.run for record in one}), len({record.id for record in one + two})) == (1, 16)
    with pytest.raises(InferlensError, match="live module"):
        inferlens.bench("fake:demo", torch.zeros(1), output=str(tmp_path))


@pytest.mark.usefixtures("one_process")
def test_the_observer_is_told_everything_in_order(tmp_path: Path) -> None:
    told: list[str] = []

    class Ear(Observer):
        def __getattribute__(self, name: str) -> Any:
            if name == "heard":
                return super().__getattribute__(name)
            return lambda *_: told.append(name) if not told or told[-1] != name else None

    inferlens.bench("fake:demo", backend="fake:steady", iterations=5, output=str(tmp_path), observer=Ear())
    assert told == ["doing", "planned", "doing", "began", "phase", "progress", "done"]


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("trust", [False, True])
def test_a_file_that_names_code_as_its_source_runs_it_only_with_trust(trust: bool, tmp_path: Path) -> None:
    """What lies beside a compiled file may come from anywhere."""
    origin = Origin(spec="factory:nowhere_to_be_found:build", format="module")
    found = ModelInfo(spec="engine:net.engine", name="net", format="engine", origin=origin)
    case = Case(model=found.spec, backend="tensorrt", variant="rtx", device="cuda")
    plan = Plan(model=("net.engine",), trust=trust, output=str(tmp_path))
    run = scheduler.Scheduler(plan, Observer(), tmp_path)
    missing = run._reference(Planned(case, found, None)).missing
    assert ("--trust" in missing) is not trust
    assert trust is ("nowhere_to_be_found" in missing and "failed" in missing)


def test_what_a_file_was_compiled_from_keeps_its_seed_and_is_fed_with_the_cases(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heard: list[Any] = []

    def launched(_: Any, job: Any, **__: Any) -> Any:
        heard.append(job)
        return Outcome(TaskResult(status="crashed"))

    monkeypatch.setattr(processes, "launch", launched)
    found = ModelInfo(
        spec="engine:net.engine", name="net", format="engine", origin=Origin(spec="fake:net", format="fake", seed=3)
    )
    for seed in (0, 1, 1):
        case = Case(model=found.spec, backend="tensorrt", variant="rtx", device="cuda", seed=seed)
        run = scheduler.Scheduler(Plan(model=("net.engine",), output=str(tmp_path)), Observer(), tmp_path)
        run._reference(Planned(case, found, None))
        assert (heard[-1].case.seed, heard[-1].inputs_seed) == (3, seed)


@pytest.mark.usefixtures("one_process")
def test_a_runner_that_cannot_be_entered_is_a_row_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a runner cannot tell what memory it takes either: libraries build their engines when they are entered."""

    def refuse(_: FakeRunner) -> FakeRunner:
        raise Unsupported("It takes no such layer.", hint="another precision")

    def untold(_: FakeRunner) -> None:
        raise AttributeError("there is no device yet")

    monkeypatch.setattr(FakeRunner, "__enter__", refuse)
    monkeypatch.setattr(FakeRunner, "device_memory", untold)
    (record,) = inferlens.bench("fake:demo", backend="fake", output=str(tmp_path))
    assert (record.status, record.reason, record.hint) == (
        "unsupported",
        "It takes no such layer.",
        "another precision",
    )
