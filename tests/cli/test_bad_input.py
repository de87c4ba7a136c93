"""What a user mistypes: found before the first case's process, said once, with exit code 2 and nothing left behind."""

import re
from pathlib import Path

import pytest

from tests.commands import inferlens, output_of, refusal_of

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

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
    """Models of a user's own, and files of weights."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "ours.py").write_text(CODE)
    (folder / "lacking.py").write_text("import nosuchlibrary\n")
    (folder / "cut.py").write_text("def small(:\n")
    torch.save(torch.nn.Linear(2, 2).state_dict(), folder / "linear.pth")
    torch.save(torch.nn.Linear(2, 2), folder / "pickle.pt")
    module, image = torch.nn.Conv2d(3, 4, 3).eval(), torch.zeros(1, 3, 8, 8)
    torch.onnx.export(module, (image,), str(folder / "fixed.onnx"), input_names=["image"], dynamo=False)
    torch.jit.trace(module, image).save(str(folder / "script.pt"))
    return folder


BAD = {
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


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_message_before_anything_runs(folder, words):
    def files():
        return sorted(file for file in folder.iterdir() if file.name != "__pycache__")

    before = files()
    done = inferlens("bench", *words.split(), cwd=folder)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False), done.stderr
    assert BAD[words] in done.stderr
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) <= 4
    for near in re.findall(r"did you mean (.+?)\?", done.stderr):
        meant = re.split(", | or ", near)
        assert len(meant) == len(set(meant))
    assert files() == before


@pytest.mark.parametrize("command", ["profile {} {}", "ab {} pytorch torchscript {}", "export {} --to x.onnx {}"])
def test_the_other_commands_refuse_it_too(folder, command):
    for model, more, said in (("smal", "", "did you mean small"), ("shown", "--input imagine=1x3x8x8", "imagine")):
        assert said in refusal_of(*command.format(f"ours:{model}", more).split(), cwd=folder)
        assert not (folder / "results").exists()


def test_a_batch_that_one_file_forbids_is_a_row_beside_those_that_run(folder, tmp_path):
    words = ("--batch", "1,4", "-b", "onnxruntime", "--iterations", "5", "--output", str(tmp_path))
    done = inferlens("bench", "fixed.onnx", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "[2/2] onnxruntime:cpu batch 4 unsupported: The file does not take image=4x3x8x8:float32." in done.stderr


def test_a_command_that_there_is_not_suggests_one(tmp_path):
    assert "did you mean bench?" in inferlens("bensh", cwd=tmp_path).stderr
    assert "Try: inferlens bench resnet18" in inferlens("resnet18", cwd=tmp_path).stderr


def test_a_dry_run_tells_how_long_it_takes_on_one_screen(tmp_path):
    axes = ("--backend", "fake:all", "--batch", "1,2,3,4,5,6,7,8", "--precision", "fp32,fp8")
    done = inferlens("bench", "fake:demo", *axes, "--dry-run", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 100) == (True, True)
    times = r"about \d+ min( \d+ s)?, then rounds: about 1 min \(--within\)\."
    assert re.fullmatch(rf"48 cases, 24 of them can run: {times}", lines[-1])
    assert "32 more cases: --json lists all of them." in lines
    inferlens("bench", "fake:demo", "-b", "fake", "--iterations", "5", cwd=tmp_path)
    known = output_of("bench", "fake:demo", "-b", "fake", "--dry-run", cwd=tmp_path)
    assert known.splitlines()[-1] == "1 case, 1 of them can run: about 5 s."
