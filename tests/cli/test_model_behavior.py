"""Commands on models that are no pure functions: what the answer says of them, and which ways are ranked."""

import json
from pathlib import Path

import pytest

from tests.commands import output_of, refusal_of

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        return self.change(x)

def made(change):
    net = Net()
    net.change = change.__get__(net)
    return net, (torch.randn(4, 8),)

def noise():
    return made(lambda self, x: self.layer(x) + torch.randn_like(x))

def writes():
    return made(lambda self, x: self.layer(x.mul_(0.5).add_(1)))

def counts():
    def change(self, x):
        self.count += 1
        return self.layer(x) + self.count
    return made(change)

def masked():
    return made(lambda self, x: self.layer(x).masked_fill(torch.arange(8) % 4 == 0, float("-inf")))

def frozen():
    def change(self, x):
        twice = 2 if torch.compiler.is_compiling() else 1
        return (self.layer(x) * twice).masked_fill(torch.arange(8) % 4 == 0, float("-inf"))
    return made(change)

def half():
    return nn.Linear(8, 8).half(), (torch.randn(4, 8).half(),)
"""


def bench(folder: Path, factory: str, backends: str = "pytorch,onnxruntime:cpu") -> str:
    (folder / "behaving.py").write_text(MODELS, "utf-8")
    words = ("--backend", backends, "--mode", "latency", "--quick", "--iterations", "5", "--warmup", "1")
    return output_of("bench", f"behaving.py:{factory}", *words, "--output", "out", cwd=folder)


@pytest.mark.parametrize(("factory", "answer", "rows"), [
    ("writes", "", {"pytorch": "right", "onnxruntime:cpu": "right"}),
    ("noise", "outputs not compared: they are random", {"pytorch": "random", "onnxruntime:cpu": "random"}),
    ("counts", "the model keeps state", {"pytorch": "keeps state", "onnxruntime:cpu": "state lost"}),
    ("masked", "outputs with NaN or inf", {"pytorch": "right", "onnxruntime:cpu": "right"}),
    ("frozen", "outputs with NaN or inf", {"pytorch": "right", "onnxruntime:cpu": "wrong"}),
])  # fmt: skip
def test_the_answer_says_how_the_model_behaves(tmp_path, factory, answer, rows):
    shown = bench(tmp_path, factory)
    headline = shown.split("\n\n")[1]
    assert answer in headline
    assert ("THE ONLY WAY THAT RAN RIGHT  pytorch" in headline) >= (rows["onnxruntime:cpu"] in ("state lost", "wrong"))
    for name, word in rows.items():
        (line,) = [line for line in shown.splitlines() if line[3:].startswith(f"{name} ")]
        assert word in line


def test_a_half_precision_module_runs_in_its_own_type(tmp_path):
    assert "fp16" in bench(tmp_path, "half", "pytorch")
    (record,) = tmp_path.glob("out/*/*/record.json")
    assert json.loads(record.read_bytes())["case"]["precision"] == "fp16"


def test_tune_ends_at_once_where_outputs_are_random(tmp_path):
    (tmp_path / "behaving.py").write_text(MODELS, "utf-8")
    said = refusal_of("tune", "behaving.py:noise", "--budget", "100s", "--output", "out", cwd=tmp_path)
    assert "behaving.py:noise gives random outputs: a wrong candidate cannot be told from a right one" in said
