"""``inferlens export`` and back: what is written runs again, with the outputs of the model that it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from inferlens.backends import BACKENDS
from inferlens.backends.base import TOLERANCES, Capabilities, Outputs, Preparation
from inferlens.backends.onnx import export as onnx_export
from inferlens.execution.benchmark import BenchmarkJob, Measured, Reference, ReferenceJob, benchmark, reference
from inferlens.execution.build import saver
from inferlens.execution.expand import expand
from inferlens.execution.protocol import TaskResult
from inferlens.measure.agreement import compare
from inferlens.models import resolve
from inferlens.models.model import Model
from inferlens.spec.case import Budget, Case
from inferlens.spec.plan import Plan
from tests.commands import inferlens, launch, started

NET = "tests.backends.small:Convolution"
X = "image=1x3x32x32"


class Stubborn(nn.Module):
    """Asks for values, which no exporter can know."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        if image.sum().item() > 0:
            raise ValueError("no exporter\ngets past this")
        return image.not_there  # type: ignore[attr-defined, no-any-return]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def machine() -> dict[str, Capabilities]:
    """What the backends can do here that run on a CPU."""
    return {name: BACKENDS.get(name)().capabilities() for name in ("onnxruntime", "pytorch", "torchscript")}


def exported(path: Path, backend: str = "", input: str = X, **fields: Any) -> tuple[Model, Case]:
    """Writes the small model as ``export`` does, without a process of its own; gives a fresh one, and its case."""
    name = (backend or saver(path)).partition(":")[0]
    words = {"model": NET, "input": input, "backend": backend or name, **fields}
    plan = Plan.from_words(words)
    found = resolve.find(NET)
    (planned,) = expand(plan, [found], {name: BACKENDS.get(name)().capabilities()})
    model = resolve.load(planned.case)
    BACKENDS.get(name)().save(model, planned.case, Preparation(path.parent / "case", path.parent), path)
    return resolve.load(planned.case), planned.case


def measured(
    path: Path, machine: dict[str, Capabilities], folder: Path, **words: Any
) -> list[tuple[Case, TaskResult[Measured]]]:
    """What ``inferlens bench`` measures of a file, and whether that agrees, without processes of their own."""
    plan = Plan.from_words({"model": str(path), "threads": 1, **words})
    answers = []
    for planned in expand(plan, [resolve.find(str(path))], machine):
        if planned.refusal:
            continue
        assert planned.reference is not None
        _, weights = outputs_of(planned.reference, folder)
        job = BenchmarkJob(
            case=planned.case, budget=Budget(warmup=1, iterations=2), folder=str(folder / "run"), cache=str(folder),
            reference=Reference(name="r", path=str(folder / "reference.npz"), weights_sha256=weights),
        )  # fmt: skip
        answers.append((planned.case, launch(benchmark, job, timeout=0.0).result))
    return answers


def agrees(result: TaskResult[Measured]) -> bool:
    """Whether the outputs were right."""
    return bool(result.found and result.found.agreement and result.found.agreement.agrees)


def outputs_of(case: Case, folder: Path) -> tuple[Outputs, str]:
    """What a case gives for the inputs of its seed, and the hash of its weights."""
    path = folder / "reference.npz"
    job = ReferenceJob(case=case, folder=str(folder), cache=str(folder), path=str(path), inputs_seed=case.seed)
    result = launch(reference, job, timeout=0.0).result
    assert result.found, result.reason
    with np.load(path) as file:
        return [file[f"output{index}"] for index in range(len(file.files))], result.found


KINDS = {".onnx": "", ".pt": "torchscript:trace", "script.pt": "torchscript:script", ".pt2": ""}
# No backend runs a bf16 graph on the CPU.
WRITTEN = [
    (".onnx", "fp32"), (".onnx", "fp16"), (".pt", "bf16"), ("script.pt", "fp16"), (".pt2", "fp32"), (".pt2", "bf16"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "precision"), WRITTEN)
def test_what_is_written_runs_in_its_own_precision_with_the_models_outputs(
    kind: str, precision: str, here: Path, machine: dict[str, Capabilities]
) -> None:
    path = here / f"net{kind}"
    _, case = exported(path, KINDS[kind], precision=precision)
    ran = measured(path, machine, here)
    assert ran
    own, _ = outputs_of(Case(model=case.model, backend="pytorch", inputs=case.inputs), here)
    for measured_case, answer in ran:
        assert measured_case.precision == precision
        assert answer.model is not None
        assert [(spec.name, spec.shape) for spec in answer.model.inputs] == [("image", (1, 3, 32, 32))]
        assert answer.status == "ok"
        assert agrees(answer), answer.found
        again, _ = outputs_of(measured_case, here)
        found = compare(again, own, TOLERANCES[precision], "the model it came from")
        assert found.agrees, found


def test_an_exported_program_is_written_in_another_precision(here: Path, machine: dict[str, Capabilities]) -> None:
    """The statistics of its batch norm are views, whose types exporters look behind."""
    program, target = here / "net.pt2", here / "half.onnx"
    exported(program, precision="fp32")
    of = Case(model=f"file:{program}", backend="onnxruntime", variant="cpu", precision="fp16")
    BACKENDS.get("onnxruntime")().save(resolve.load(of), of, Preparation(here / "case", here), target)
    ((case, answer),) = measured(target, machine, here)
    assert (case.precision, answer.status) == ("fp16", "ok")
    own = outputs_of(Case(model=f"file:{program}", backend="pytorch"), here)[0]
    found = compare(outputs_of(case, here)[0], own, TOLERANCES["fp16"], "the program")
    assert found.agrees, found


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".pt"])
def test_a_range_of_sizes_is_in_the_file(suffix: str, here: Path, machine: dict[str, Capabilities]) -> None:
    path = here / f"net{suffix}"
    exported(path, input="image=1..4x3x32x32")
    able = {name: can for name, can in machine.items() if (name, suffix) != ("torchscript", ".pt2")}  # no free sizes
    ran = measured(path, able, here, batch="1,4")
    assert {case.batch for case, _ in ran} == {1, 4}
    assert all(agrees(answer) and answer.model is not None for _, answer in ran)
    if suffix == ".onnx":
        import onnx

        (value,) = onnx.load(path).graph.input
        assert [size.dim_param != "" for size in value.type.tensor_type.shape.dim] == [True, False, False, False]


def test_weights_above_the_limit_lie_beside_the_graph_and_move_with_it(
    here: Path, machine: dict[str, Capabilities], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_export, "EMBED_LIMIT", 10)
    import onnx

    real = onnx.save  # smaller weights than a KiB stay in the graph, and these are
    monkeypatch.setattr(onnx, "save", lambda *a, **more: real(*a, **more, size_threshold=300))
    exported(here / "big.onnx")
    assert sorted(path.name for path in here.glob("big*")) == ["big.onnx", "big.onnx.data"]
    assert (here / "big.onnx.data").stat().st_size > 1000
    moved = here / "elsewhere"
    moved.mkdir()
    for name in ("big.onnx", "big.onnx.data"):
        (here / name).rename(moved / name)
    ((_, answer),) = measured(moved / "big.onnx", machine, here)
    assert agrees(answer)


def test_on_the_command_line_in_a_process_of_its_own(here: Path) -> None:
    (here / "models.py").write_text("import torch\n\ndef net():\n    return torch.nn.Conv2d(3, 4, 3)\n")
    done = started("export", "models:net", "--to", "files/net.onnx", "--input", "x=1..2x3x8x8", "--rebuild", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "Run it: inferlens bench files/net.onnx" in done.stderr
    assert done.stdout == ""
    assert [path.name for path in (here / "files").iterdir()] == ["net.onnx"]


FACTORY = """
import torch

class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 8)

    def forward(self, tokens, mask):
        return (self.words(tokens) * mask.unsqueeze(-1)).sum(1)

def encoder():
    return Encoder(), {"tokens": torch.full((2, 12), 49), "mask": torch.rand(2, 12)}

def turned():
    return Encoder(), {"mask": torch.rand(2, 12), "tokens": torch.full((2, 12), 49)}
"""


@pytest.mark.parametrize(
    ("factory", "name", "backend"),
    [
        ("turned", "net.pt", "torchscript:trace"),
        ("encoder", "net.pt", "torchscript:script"),
        ("turned", "net.pt2", "pytorch"),
        ("turned", "net.onnx", "onnxruntime"),
    ],
)
def test_the_inputs_that_a_factory_names_come_back_by_the_command_that_is_told(
    factory: str, name: str, backend: str, here: Path
) -> None:
    (here / "encoders.py").write_text(FACTORY)
    asked = ["-b", backend] if ":" in backend else []
    done = inferlens("export", f"encoders:{factory}", "--to", name, "--seed", "1", *asked, cwd=here)
    assert done.returncode == 0, done.stderr
    command = done.stderr.strip().rpartition("Run it: inferlens ")[2].split()
    words = ("--iterations", "5", "--warmup", "1", "--threads", "1", "--json")
    done = inferlens(*command, "-b", backend, *words, cwd=here)
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["status"], row["agrees"]) == ("ok", True), row
    (record,) = (msgspec.json.decode(path.read_bytes()) for path in (here / "results").rglob("record.json"))
    inputs = {spec["name"]: (spec["shape"], spec["dtype"]) for spec in record["model"]["inputs"]}
    assert inputs == {"tokens": ([2, 12], "int64"), "mask": ([2, 12], "float32")}
    assert list(inputs) == (["tokens", "mask"] if factory == "encoder" else ["mask", "tokens"])
    if backend != "onnxruntime":
        (tokens,) = (spec for spec in record["model"]["inputs"] if spec["name"] == "tokens")
        assert (tokens["low"], tokens["high"]) == (49, 50)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fake:demo", "--to", "net.onxx"), "did you mean .onnx?"),
        (("fake:demo", "--to", "net.onnx", "--backend", "openvino"), "writes no models to files named '.onnx'"),
        ((NET, "--to", "net.pt", "--precision", "fp32,fp16"), "This takes one case, not 2."),
        ((f"{__name__}:Stubborn", "--to", "net.pt2", "--input", X), "cannot export"),
        (("tests.backends.small:Convolutoin", "--to", "net.pt2"), "Try: did you mean Convolution?"),
    ],
    ids=["suffix", "backend", "two cases", "fails", "factory"],
)
def test_what_cannot_be_written_is_one_message_and_leaves_the_old_file(
    arguments: tuple[str, ...], words: str, here: Path
) -> None:
    old = here / arguments[2]
    old.write_text("old")
    before = {path.name for path in here.iterdir()}
    done = inferlens("export", *arguments, cwd=here)
    assert done.returncode == 2, done.stderr
    assert words in " ".join(done.stderr.split())
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert len(done.stderr.splitlines()) <= 3
    assert old.read_text() == "old"
    assert {path.name for path in here.iterdir()} - {"results"} == before
