"""What a user mistypes, and what commands refuse: found before the first case's process, said once, nothing left."""

import re
import shlex
from pathlib import Path

import pytest

from tests.analysis.profiles import eager, failed, fused, other, traced
from tests.analysis.profiles import saved as saved_profiles
from tests.commands import inferlens
from tests.trace.samples import text, training
from tests.views.samples import case, ran, saved

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

SECOND = case("openvino")
CPU_TRACE = text({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1})
CODE = """
import torch
class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
    def forward(self, image):
        return self.conv(image)
def small(): return Small()
def shown(): return Small(), torch.zeros(2, 3, 8, 8)
def wrong(): return Small(), torch.zeros(2, 5, 8, 8)
class Text(torch.nn.Module):
    def forward(self, input_ids, mask): return input_ids * mask
def text(): return Text()
def flat(): return torch.nn.Linear(8, 4)
def broken(): raise RuntimeError("the checkpoint is gone")
def number(): return 3
def wants(size): return Small()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of a user's own and files of weights, records of two runs, profiles, traces, and files of other kinds."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "ours.py").write_text(CODE)
    (folder / "lacking.py").write_text("import nosuchlibrary\n")
    (folder / "cut.py").write_text("def small(:\n")
    torch.save(torch.nn.Linear(2, 2).state_dict(), folder / "linear.pth")
    torch.save(torch.nn.Linear(2, 2), folder / "pickle.pt")
    module, image = torch.nn.Conv2d(3, 4, 3).eval(), torch.zeros(1, 3, 8, 8)
    torch.onnx.export(module, (image,), str(folder / "fixed.onnx"), input_names=["image"], dynamo=False)
    torch.jit.trace(module, image).save(str(folder / "script.pt"))
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


OF_BENCH = {
    "ours:shown --input imagine=1x3x8x8": "There is no input 'imagine'",
    "ours:shown --input image=3x8": "ours:shown does not take image=3x8:float32",
    "ours:shown --input image=1x4x8x8": "to have 3 channels, but got 4",
    "ours:shown --input image=1x3x8x8:int64": "does not take image=1x3x8x8:int64",
    "ours:shown --input image=1x3": "Expected: inputs such as image=2x3x8x8:float32",
    "ours:small --input image=1x3x8": "",
    "ours:wrong": "does not take image=2x5x8x8:float32",
    "ours:flat": "What to feed this model is not known.",
    "ours:text": "Try: inferlens bench ours:text --input input_ids=1x128:int64 --input mask=1x128:int64\n",
    "ours:smal": "did you mean small",
    "ours:broken": "the checkpoint is gone (ours.py, line 16)", "ours:number": "returns a value of type int",
    "ours:wants": "missing 1 required positional argument",
    "lacking:small": "No module named 'nosuchlibrary' (lacking.py, line 1)", "cut:small": "SyntaxError",
    "our:small": "did you mean ours.py?", "ours.py:smal": "did you mean small or Small?",
    "ours.py": "Expected: one of ours.py:small, ours.py:shown, ours.py:wrong, ours.py:text, ours.py:flat\n",
    "our.py:small": "did you mean ours.py or cut.py?", "torchvison:resnet18": "did you mean torchvision?",
    "fixd.onnx": "did you mean fixed.onnx?", "fixd.onx": "There is neither a file nor a model 'fixd.onx'.",
    "fixed.onx": "did you mean fixed.onnx?", "plan.toml": "does not exist",
    "pickle.pt": "can run code when it is opened", "fixed.onnx --input imag=1x3x8x8": "Expected: image\n",
    "fixed.onnx --input image=1x3x9x9": "Expected: image=1x3x8x8:float32",
    "fixed.onnx --batch 4": "does not take image=4x3x8x8", "fixed.onnx --weights linear.pth": "brings its own weights",
    "script.pt --input image=1x3x8": "does not take image=1x3x8",
    "ours:shown --weights linear.pt": "did you mean linear.pth?",
    "ours:shown --weights linear.pth": 'Missing key(s) in state_dict: "conv.weight", "conv.bias"',
    "ours:shown --weights pretrained": "has no weights by name",
    "ours:shown --precision int8 -b pytorch": "does not run int8", "ours:shown --precision fp61": "did you mean fp16?",
    "ours:shown --top x": "--top takes a whole number.",
    "ours:shown --batch 0": "a whole number, 1 or more", "ours:shown --format chart": "--plot FILE.svg",
    "ours:shown -b pytroch": "did you mean pytorch?", "ours:shown -b torchscript:trase": "did you mean trace?",
    "ours:shown -b fake": "cannot run a model of format 'module'",
    "ours:shown --option latency=2": "Try: --option fake.latency=2", "ours:shown --option fake.latency": "has no value",
    "ours:shown --option fake.latncy=2": "did you mean latency?",
    "ours:shown --option onnxruntime.thread=2": "did you mean --threads?",
    "ours:shown --option threads=2": "did you mean --threads?",
    "ours:shown --within 40sec": "Expected: such as 40 (seconds), 40s, 2m, 1h",
    "ours:shown --option fake.latency=fast": "Expected: number",
    "ours:shown --option fake.latency=2": "runs none of these cases",
    "ours:shown -b pytorch --option fake.latency=2": "--backend fake",
    "ours:shown -b pytorch --reference openvino": "No case fits the reference 'openvino'.",
    "ours:shown -b pytorch --reference pytorch,tf32=true": "No case fits the reference",
    "ours:shown --bakend pytorch": "did you mean --backend?", "ours:shown --rotat": "did you mean --rotate?",
    "": "Missing argument 'model'.",
}  # fmt: skip
REFUSED = {
    **{f"bench {words}": message for words, message in OF_BENCH.items()},
    "profile ours:smal": "did you mean small", "profile ours:shown --input imagine=1x3x8x8": "imagine",
    "ab ours:smal pytorch torchscript": "did you mean small",
    "ab ours:shown pytorch torchscript --input imagine=1x3x8x8": "imagine",
    "export ours:smal --to x.onnx": "did you mean small",
    "export ours:shown --to x.onnx --input imagine=1x3x8x8": "imagine",
    "profile fake:demo --active 3": "no effect without --torch",
    "profile fake:demo --torch-profiler --level kernel": "with --torch",
    "tune fake:demo --only fake:fast,fake:steady,fp8": "",
    "bensh": "did you mean bench?", "resnet18": "Try: inferlens bench resnet18",
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
    "show nowhere --view findings": "does not exist", "show profiles --view findings -f junit": "no format 'junit'",
    "show base --view notes --plot a.svg": "show different things", "show base --against error": "are for a chart",
    "show base --all": "for notes and findings", "show base --light": "a folder to join records in",
    "show base --view layers": "no view 'layers'", "show base --runs some": "some",
    "show base --runs all --reference tensorrt": "No case fits the reference 'tensorrt'",
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
    "bench fake:demo -b fake --option fake.knob_d=1,2": "Try: --option fake.knob_c=VALUE",
    "bench fake:demo -b fake --option fake.knob_a=1,2 -o sweep.xyz": "file ending",
    "findings base": "There is no command 'findings'.",
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_one_message_before_anything_runs(line, folder):
    def files():
        return sorted(file for file in folder.iterdir() if file.name != "__pycache__")

    before = files()
    done = inferlens(*shlex.split(line), cwd=folder)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False), done.stderr
    assert REFUSED[line] in done.stderr
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) <= 4
    for near in re.findall(r"did you mean (.+?)\?", done.stderr):
        meant = re.split(", | or ", near)
        assert len(meant) == len(set(meant))
    assert files() == before


def test_a_batch_that_one_file_forbids_is_a_row_beside_those_that_run(folder, tmp_path):
    words = ("--batch", "1,4", "-b", "onnxruntime", "--iterations", "5", "--output", str(tmp_path))
    done = inferlens("bench", "fixed.onnx", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "[2/2] onnxruntime:cpu batch 4 unsupported: The file does not take image=4x3x8x8:float32." in done.stderr
