"""``inferlens export`` and back: what is written runs again, with the outputs of the model that it came from.

Engines are built on a machine without a GPU.
"""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from inferlens.backends import BACKENDS
from inferlens.backends.base import TOLERANCES, Outputs, Preparation
from inferlens.backends.onnx import graph as onnx_export
from inferlens.cli.files import report_text
from inferlens.execution import child
from inferlens.execution.cases import expand
from inferlens.execution.deploy import saver
from inferlens.execution.tasks import ReferenceJob, ReferenceRun
from inferlens.measure.output_check import compare
from inferlens.models import resolve
from inferlens.models.compiled import read_provenance
from inferlens.record.builds import Build, BuildReport, LayerDifference
from inferlens.spec.case import Case
from inferlens.spec.plan import Plan
from tests.commands import inferlens, launch, output_of, refusal_of
from tests.snapshots import compare_with_stored

NET = "tests.backends.small:Convolution"
X = "image=1x3x32x32"


class Stubborn(nn.Module):
    """Asks for values, which no exporter can know."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        if image.sum().item() > 0:
            raise ValueError("no exporter\ngets past this")
        return image.not_there


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def exported(path: Path, backend: str = "", input: str = X, precision: str = "fp32") -> Case:
    """Writes the small model as ``export`` does, without a process of its own; gives its case."""
    name = (backend or saver(path)).partition(":")[0]
    plan = Plan.from_words({"model": NET, "input": input, "backend": backend or name, "precision": precision})
    (planned,) = expand(plan, [resolve.find(NET)], {name: BACKENDS.get(name)().capabilities()})
    preparation = Preparation(path.parent / "case", path.parent)
    BACKENDS.get(name)().save(resolve.load(planned.case), planned.case, preparation, path)
    return planned.case


def benched(path: Path, *words: str) -> list[dict[str, Any]]:
    """The rows that ``inferlens bench`` has of a file."""
    backend = {".onnx": "onnxruntime", ".pt": "torchscript", ".pt2": "pytorch"}[path.suffix]
    quick = ("--iterations", "3", "--warmup", "1", "--threads", "1", "--mode", "latency", "--json")
    done = inferlens("bench", str(path), "-b", backend, *quick, *words, cwd=path.parent)
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    assert all(row["agrees"] for row in rows), done.stdout
    return rows


def as_its_model(path: Path, of: Case) -> bool:
    """Whether a file gives the outputs of the model that it came from."""
    (row,) = benched(path)
    backend, _, variant = row["backend"].partition(":")
    precision = row["precision"]
    written = Case(model=resolve.find(str(path)).spec, backend=backend, variant=variant, precision=precision)
    own = Case(model=of.model, backend="pytorch", inputs=of.inputs)
    outputs = (outputs_of(case, path.parent) for case in (written, own))
    return bool(compare(*outputs, TOLERANCES[precision], "the model it came from").agrees)


def outputs_of(case: Case, folder: Path) -> Outputs:
    """What a case gives for the inputs of its seed."""
    path = folder / "reference.npz"
    job = ReferenceJob(case=case, folder=str(folder), cache=str(folder), path=str(path), inputs_seed=case.seed)
    result = launch("reference", job, ReferenceRun, timeout=0.0).result
    assert result.value, result.reason
    with np.load(path) as file:
        return [file[name] for name in file.files if name.startswith("output")]


# No backend runs a bf16 graph on the CPU.
@pytest.mark.parametrize(("name", "backend", "precision"), [
    ("net.onnx", "", "fp16"), ("net.pt", "torchscript:trace", "bf16"), ("net.script.pt", "torchscript:script", "fp16"),
    ("net.pt2", "", "fp32"),
])  # fmt: skip
def test_what_is_written_runs_in_its_own_precision_with_the_models_outputs(name, backend, precision, here):
    case = exported(here / name, backend, precision=precision)
    (row,) = benched(here / name)
    assert row["precision"] == precision
    assert row["inputs"].startswith("image=1x3x32x32:")
    assert as_its_model(here / name, case)


def test_an_exported_program_is_written_in_another_precision(here):
    """The statistics of its batch norm are views, whose types exporters look behind."""
    program, target = here / "net.pt2", here / "half.onnx"
    exported(program)
    of = Case(model=f"file:{program}", backend="onnxruntime", variant="cpu", precision="fp16")
    BACKENDS.get("onnxruntime")().save(resolve.load(of), of, Preparation(here / "case", here), target)
    assert as_its_model(target, of)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".pt"])
def test_a_range_of_sizes_is_in_the_file(suffix, here):
    path = here / f"net{suffix}"
    exported(path, input="image=1..4x3x32x32")
    assert {row["batch"] for row in benched(path, "--batch", "1,4")} == {1, 4}
    if suffix == ".onnx":
        import onnx

        (value,) = onnx.load(path).graph.input
        assert [size.dim_param != "" for size in value.type.tensor_type.shape.dim] == [True, False, False, False]


def test_weights_above_the_limit_lie_beside_the_graph_and_move_with_it(here, monkeypatch):
    monkeypatch.setattr(onnx_export, "EMBED_LIMIT", 10)
    import onnx

    real = onnx.save  # smaller weights than a KiB stay in the graph, and these are
    monkeypatch.setattr(onnx, "save", lambda *a, **more: real(*a, **more, size_threshold=300))
    exported(here / "big.onnx")
    assert sorted(path.name for path in here.glob("big*")) == ["big.onnx", "big.onnx.data"]
    (here / "elsewhere").mkdir()
    for name in ("big.onnx", "big.onnx.data"):
        (here / name).rename(here / "elsewhere" / name)
    assert benched(here / "elsewhere" / "big.onnx")


def test_on_the_command_line_in_a_process_of_its_own(here, monkeypatch):
    real, tasks = child.launch, []

    def launch_export(task: str, *arguments: Any, **words: Any) -> Any:
        tasks.append(task)
        return (real if task == "save" else launch)(task, *arguments, **words)

    monkeypatch.setattr("tests.commands.launch", launch_export)
    (here / "models.py").write_text("import torch\n\ndef net():\n    return torch.nn.Conv2d(3, 4, 3)\n")
    done = inferlens("export", "models:net", "--to", "files/net.pt", "--input", "x=1..2x3x8x8", "--rebuild", cwd=here)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "Run it: inferlens bench files/net.pt" in done.stderr
    assert [path.name for path in (here / "files").iterdir()] == ["net.pt"]
    assert "save" in tasks


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


@pytest.mark.parametrize(("factory", "name", "backend"), [
    ("encoder", "net.pt", "torchscript:trace"), ("turned", "net.pt2", "pytorch"), ("turned", "net.onnx", "onnxruntime"),
])  # fmt: skip
def test_the_inputs_that_a_factory_names_come_back_by_the_command_that_is_told(factory, name, backend, here):
    (here / "encoders.py").write_text(FACTORY)
    asked = ["-b", backend] if ":" in backend else []
    done = inferlens("export", f"encoders:{factory}", "--to", name, "--seed", "1", *asked, cwd=here)
    command = done.stderr.strip().rpartition("Run it: inferlens ")[2].split()
    words = ("--iterations", "5", "--warmup", "1", "--threads", "1", "--json")
    (row,) = json.loads(output_of(*command, "-b", backend, *words, cwd=here))["rows"]
    assert (row["status"], row["agrees"]) == ("ok", True), row
    (record,) = (msgspec.json.decode(path.read_bytes()) for path in (here / "results").rglob("record.json"))
    inputs = {spec["name"]: (spec["shape"], spec["dtype"]) for spec in record["model"]["inputs"]}
    assert inputs == {"tokens": ([2, 12], "int64"), "mask": ([2, 12], "float32")}
    assert list(inputs) == (["tokens", "mask"] if factory == "encoder" else ["mask", "tokens"])
    if backend != "onnxruntime":
        (tokens,) = (spec for spec in record["model"]["inputs"] if spec["name"] == "tokens")
        assert (tokens["low"], tokens["high"]) == (49, 50)


@pytest.mark.parametrize(("arguments", "words"), [
    (("fake:demo", "--to", "net.onxx"), "did you mean .onnx?"),
    (("fake:demo", "--to", "net.onnx", "--backend", "openvino"), "writes no models to files named '.onnx'"),
    ((NET, "--to", "net.pt", "--precision", "fp32,fp16"), "This command takes one case, not 2."),
    ((f"{__name__}:Stubborn", "--to", "net.pt2", "--input", X), "cannot export"),
    (("tests.backends.small:Convolutoin", "--to", "net.pt2"), "Try: did you mean Convolution?"),
], ids=["suffix", "backend", "two cases", "fails", "factory"])  # fmt: skip
def test_what_cannot_be_written_is_one_message_and_leaves_the_old_file(arguments, words, here):
    old = here / arguments[2]
    old.write_text("old")
    before = {path.name for path in here.iterdir()}
    done = inferlens("export", *arguments, cwd=here)
    said = " ".join(done.stderr.split())
    assert (done.returncode, words in said, said.startswith("Error: ")) == (2, True, True), said
    assert ("Traceback" in said, "\x1b" in said, len(done.stderr.splitlines()) <= 3) == (False, False, True)
    assert old.read_text() == "old"
    assert {path.name for path in here.iterdir()} - {"results"} == before


ON_AMPERE = ("--backend", "tensorrt:rtx", "--compute-capability", "8.0,8.9")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ONNX file in a folder of its own."""
    pytest.importorskip("tensorrt_rtx")
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("build")
    module: Any = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()
    torch.onnx.export(
        module, (torch.ones(2, 8),), folder / "net.onnx", input_names=["x"], dynamo=True, verbose=False,
        external_data=False,
    )  # fmt: skip
    return folder / "net.onnx"


def test_an_engine_and_what_it_was_built_from_are_written_and_the_second_is_cached(graph):
    said = output_of("export", "net.onnx", "--to", "net.engine", *ON_AMPERE, cwd=graph.parent)
    first, *_ = said.splitlines()
    pattern = r"net\.engine: .*built in .* by TensorRT for RTX .* for compute capability 8\.0 and 8\.9\."
    assert re.fullmatch(pattern, first), said
    told = read_provenance(graph.parent / "net.engine")
    assert (told.case.model, told.targets) == ("onnx:net.onnx", ("8.0", "8.9"))
    again = output_of("export", "net.onnx", "--to", "again.engine", *ON_AMPERE, "--json", cwd=graph.parent)
    report = json.loads(again)
    assert (report["cached"], report["path"], report["sha256"]) == (True, "again.engine", told.file_sha256)


@pytest.mark.parametrize(("arguments", "message"), [
    (("--to", "net.trt"), "Nothing writes models to files named '.trt'"),
    (("--to", "net.onnx", "--builds", "2"), "--builds is for TensorRT engines"),
    (("--to", "bad.engine"), "There is no GPU here that TensorRT"),  # of the flavour that is there
    (("--to", "bad.engine", "--backend", "tensorrt:rtx", "--compute-capability", "9.9"), "cannot build for compute"),
    (("--to", "bad.engine", "--option", "tensorrt.optimization_level=1,2"), "one case, not 2"),
    (("--to", "bad.engine", "--compute-capability", ","), "compute_capability does not take"),
    (("--to", "bad.engine", *ON_AMPERE, "--option", "tensorrt.max_num_tactics=99999999999"), "max_num_tactics"),
    (("--to", "bad.engine", *ON_AMPERE, "--option", "tensorrt.plugins=/nope/lib.so"), "/nope/lib.so is not a file"),
    (("--to", "bad.engine", *ON_AMPERE, "--option", "tensorrt.timing_cache=."), "timing_cache . is a folder"),
])  # fmt: skip
def test_what_cannot_be_built_is_said_and_nothing_is_written(arguments, message, graph):
    said = refusal_of("export", "net.onnx", *arguments, cwd=graph.parent)
    assert message in said
    assert "Try: " in said or "Expected: " in said
    assert not (graph.parent / "bad.engine").exists()


def test_several_builds_and_what_a_build_for_rtx_does_not_heed(graph):
    options = ("--option", "tensorrt.optimization_level=0", "--option", "tensorrt.timing_cache=kernels")
    done = inferlens("export", "net.onnx", "--to", "n.plan", *ON_AMPERE, "--builds", "2", *options, cwd=graph.parent)
    assert done.returncode == 0, done.stderr
    assert "  build 2: " in done.stdout
    assert "2 builds are the same, byte for byte" in done.stdout
    assert "optimization_level does nothing: TensorRT for RTX times no tactics" in done.stderr
    assert "timing_cache does nothing in a build" in done.stderr


def test_the_report_in_lines():
    one = Build(seconds=2.0, size=2**20, sha256="a" * 64, layers=3, gpu_seconds=0.001)
    report = BuildReport(
        path="net.engine", size=2**20, sha256="a" * 64, flavour="TensorRT", version="10.13", gpu="NVIDIA H200",
        compute_capability="9.0", seconds=2.0, builds=(one, Build(seconds=1.0, size=2**20, sha256="b" * 64,
        shared_timings=True)), differences=(LayerDifference("conv", ("a", "b")),), findings=("They differ.",),
    )  # fmt: skip
    compare_with_stored("build/two builds", report_text(report))
