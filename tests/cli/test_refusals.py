"""What commands on stored data refuse: one message with exit code 2, nothing on standard output, nothing written."""

import shlex
from pathlib import Path

import pytest

from tests.analysis.profiles import eager, failed, fused, other, traced
from tests.analysis.profiles import saved as saved_profiles
from tests.commands import refusal_of
from tests.trace.samples import text, training
from tests.views.samples import case, ran, saved

SECOND = case("openvino")
CPU_TRACE = text({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of two runs, profiles, traces, and files that are none of them."""
    folder = tmp_path_factory.mktemp("stored")
    saved(folder / "base", [*ran(), *ran(SECOND)])
    saved(folder / "new", [*ran(run="new"), *ran(SECOND, run="new")])
    saved(folder / "other", ran(case("onnxruntime:cpu"), run="other"))
    precisions = [case(name, precision=precision) for name in ("pytorch", "openvino") for precision in ("fp32", "int8")]
    saved(folder / "precisions", [record for of in precisions for record in ran(of)])
    saved_profiles(folder / "profiles", eager(), fused(), other(), traced())
    saved_profiles(folder / "failed", failed(case("openvino")))
    (folder / "empty").mkdir()
    files = {"broken.onnx": b"\x08\xff" * 50, "broken.json": b"{" * 1000, "none.json": b'{"Layers": []}',
             "gpu.json": training(), "cpu.json": CPU_TRACE, "hello.json": b"Hello"}  # fmt: skip
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


REFUSED = {
    "layers nowhere": "nowhere does not exist", "modules empty": "There is no profile in empty",
    "layers profiles --plot layers.gif": "cannot be written as 'gif'",
    "layers profiles --trace trace.pftrace": "as 'trace.pftrace'",
    "layers profiles --trace nowhere/trace.json": "--trace with another file",
    "roofline profiles --depth 1": "--depth is for modules.",
    "graph nowhere": "nowhere does not exist",
    "graph profiles --output graph.gif": "There is no format of graphs 'gif'",
    "graph profiles --output graph": "There is no format of graphs ''",
    "graph profiles --regions fuse": "There is no kind of regions 'fuse'",
    "graph broken.onnx": "broken.onnx", "graph broken.json": "broken.json is a JSON file of another tool",
    "graph none.json": "none.json cannot be read", "graph failed": "There is nothing to draw",
    "graph profiles --output missing/graph.json": "cannot be written",
    "show nowhere --view findings": "does not exist", "show profiles --view findings -f junit": "no format 'junit'",
    "show base --view notes --plot a.svg": "show different things", "show base --against error": "are for a chart",
    "show base --all": "for notes and findings", "show base --light": "a folder to join records in",
    "show base --view layers": "no view 'layers'", "show base --runs some": "some",
    "show base --runs": "Error: Option '--runs' requires an argument.",
    "show base --plot a.docx": "cannot be written as", "show base --plot x.svg --against beauty": "beauty",
    "show base --plot x.svg --theme pink": "There is no theme 'pink'", "show base -f tabel": "no format 'tabel'",
    "show precisions --by batch": "something that differs: precision and backend",
    "show precisions --by colour": "There is no axis 'colour'",
    "show precisions --by precision --runs all": "--by without --runs all",
    "report base -o a.docx": "no file ending '.docx'",
    "compare base nowhere": "nowhere", "compare base base": "the same records",
    "compare base other": "No case is on both sides.",
    "compare base empty": "There is no record in empty.",
    "compare base": "Missing argument 'candidate'.", "compare base new extra": "extra",
    "compare base new --threshold 2": "not a percentage",
    "compare base new --threshold 0%": "The threshold must be above 0.",
    "compare base new --level 100%": "Expected: 50% to 99.99%", "compare base new --metric speed": "speed",
    "compare base new --format yaml": "There is no format 'yaml'",
    "trace gpu.json --view kernel": "There is no view 'kernel'",
    "trace gpu.json --against cpu.json --view memory": "does not compare",
    "trace gpu.json --format svg": "There is no format 'svg'", "trace gpu.json --step 9": "no step 9",
    "trace gpu.json --by colour": "There is no --by 'colour'", "trace nothing.json": "cannot be read",
    "trace empty": "There is no trace in empty",
    "trace hello.json": "hello.json is a file of data",
    "trace hello.json -o broken.html": "a file of data", "trace empty --plot a.svg": "is not a file",
    "trace gpu.json --plot a.txt": "svg, png, html", "trace gpu.json --view kernels --columns min,grid": "grid",
    "tune fake:demo --space missing.toml": "The space file missing.toml does not exist.",
    "bench fake:demo -b fake --option fake.knob_a=1,9": "does not take '9'",
    "bench fake:demo -b fake --option fake.knob_z=1,2": "knob_z",
    "bench fake:demo -b fake --option fake.knob_a=1,2 -o sweep.xyz": "file ending",
    "findings base": "There is no command 'findings'.",
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused_is_one_message_and_nothing_is_written(words, folder):
    before = sorted(folder.iterdir())
    assert REFUSED[words] in refusal_of(*shlex.split(words), cwd=folder)
    assert sorted(folder.iterdir()) == before
