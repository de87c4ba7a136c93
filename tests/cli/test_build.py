"""``inferlens export --to x.engine``, as a person runs it on a machine without a GPU."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from inferlens.cli.files import report_text
from inferlens.models.compiled import read_provenance
from inferlens.record.builds import Build, BuildReport, LayerDifference
from tests.commands import inferlens, output_of, refusal_of
from tests.snapshots import compare_with_stored

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
