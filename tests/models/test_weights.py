"""Weights: every layer shows in the outputs, the same everywhere, and files are read without running their code."""

import copy
import os
import pickle
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from inferlens.backends.base import TOLERANCES  # noqa: E402
from inferlens.models.inputs import flatten, make_inputs  # noqa: E402
from inferlens.models.weights import fingerprint, load_weights, parameter_count, randomize  # noqa: E402
from tests.models.loading import Bomb, loaded, small  # noqa: E402
from tests.refusals import refusal  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
FACTOR = 1.02
MARGIN = 5  # times the fp32 tolerance, that a layer changed by 2 % has to show
SAMPLED = 16  # layers of a model; benchmarks/sensitivity.py takes all layers of more models
MODELS = ["torchvision:mobilenet_v2", "timm:vit_tiny_patch16_224", "transformers:electra"]


@pytest.fixture(scope="module", params=MODELS)
def zoo(request):
    model = loaded(request.param)
    return model.module, tuple(torch.from_numpy(array) for array in make_inputs(model, 1).values())


def change(outputs, reference):
    pairs = zip(flatten(outputs), flatten(reference), strict=True)
    return max(float((ours.double() - theirs.double()).norm() / theirs.double().norm()) for ours, theirs in pairs)


def layers(module):
    """Return some weights, embeddings and layer scales, all of which matter, but no biases."""
    weights = [(path, value) for path, value in module.named_parameters() if "bias" not in path.rpartition(".")[2]]
    chosen = random.Random(0).sample(weights, SAMPLED)
    # The layers that are hardest to see are those before the softmax of the last attention.
    return chosen + [item for item in weights if "11" in item[0] and "query" in item[0]]


@torch.no_grad()
def test_two_percent_in_one_layer_show(zoo):
    module, example = zoo
    reference, shown = module(*example), {}
    for path, weight in layers(module):
        kept = weight.clone()
        weight.mul_(FACTOR)
        shown[path] = change(module(*example), reference)
        weight.copy_(kept)
    assert not {path: share for path, share in shown.items() if not share > MARGIN * TOLERANCES["fp32"]}
    assert change(module(*example), reference) == 0


@torch.no_grad()
def test_rounding_stays_within_the_tolerances_and_another_input_does_not(zoo):
    """Weights that show every change would be useless if they also showed rounding."""
    module, example = zoo
    reference = module(*example)
    assert change(module(example[0].flip(-1), *example[1:]), reference) > 10 * TOLERANCES["fp32"]
    # How CPUs round differs: vision transformers in bf16 were at 0.0503 on one.
    limits = {torch.float64: TOLERANCES["fp32"] / 10, torch.float16: TOLERANCES["fp16"] / 1.5,
              torch.bfloat16: TOLERANCES["bf16"] / 1.5}  # fmt: skip
    for kind, limit in limits.items():
        inputs = [value.to(kind) if value.is_floating_point() else value for value in example]
        assert change(copy.deepcopy(module).to(kind)(*inputs), reference) < limit, kind


def weight_hashes(seed):
    """Return hashes of weights drawn from one seed, for modules that were constructed with ``seed``."""
    torch.manual_seed(seed)
    convolutions = nn.Sequential(nn.Conv2d(3, 64, 7), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3))
    modules = ((convolutions, (1, 3, 64, 64)), (nn.TransformerEncoderLayer(64, 4), (32, 1, 64)))
    for module, shape in modules:
        randomize(module, (torch.ones(shape),), seed=3)
    return " ".join(fingerprint(module) for module, _ in modules)


def test_weights_are_the_same_bits_in_every_process_with_any_number_of_threads():
    program = f"from {__name__} import weight_hashes; print(weight_hashes(5))"
    elsewhere = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "5"},
    ).stdout  # fmt: skip
    assert elsewhere.strip() == weight_hashes(1)
    assert len(elsewhere.split()) == 2


class Shared(nn.Module):
    """A tied weight, a layer that is used twice, a layer scale of zero, and a layer that is not used."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.twice = nn.Linear(16, 16)
        self.unused = nn.Linear(3, 3)
        self.gamma = nn.Parameter(torch.zeros(16))
        self.temperature = nn.Parameter(torch.tensor(2.5))
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.gamma * self.twice(torch.relu(self.twice(x)))) / self.temperature


def test_shared_parameters_are_scaled_once_and_nothing_else_is_touched():
    torch.set_num_threads(2)
    torch.manual_seed(11)
    expected, ids = torch.rand(4), torch.arange(12).view(2, 6)
    module, shared = Shared(), Shared()
    torch.manual_seed(11)
    randomize(module, (ids,), seed=0)
    assert torch.equal(torch.rand(4), expected)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert module.head.weight is module.embed.weight
    assert parameter_count(module) == 50 * 16 + 16 * 16 + 16 + 12 + 16 + 1
    assert 0.3 < float(module.embed(ids).detach().square().mean().sqrt()) < 0.8
    assert (float(module.gamma.detach().abs().min()) >= 0.5, float(module.temperature.detach())) == (True, 2.5)
    for seed, same in ((1, False), (0, True)):
        randomize(shared, (ids,), seed=seed)
        assert (fingerprint(module) == fingerprint(shared)) == same
    assert not module.training
    assert not any(part._forward_hooks for part in module.modules())


def test_a_model_that_fails_says_so_and_keeps_no_hooks():
    module = nn.Sequential(nn.Linear(4, 4))
    refusal("fails on its own inputs", randomize, module, (torch.ones(1, 5),), seed=0)
    assert not module[0]._forward_hooks


@pytest.mark.parametrize(("saved", "complaint"), [
    (nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Linear(2, 2)), "2.weight"),
    (nn.Sequential(nn.Conv2d(3, 4, 1)), 'Missing key.s. in state_dict: "1.weight"'),
    (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), "size mismatch for 0.weight"),
])  # fmt: skip
def test_names_and_shapes_that_do_not_fit_are_listed(tmp_path, saved, complaint):
    torch.save(saved.state_dict(), tmp_path / "a.pth")
    assert len(str(refusal(complaint, load_weights, small(), tmp_path / "a.pth"))) < 600


@pytest.mark.parametrize("write", ["torch", "legacy", "pickle"])
def test_code_in_a_file_is_refused_and_not_run(tmp_path, write):
    mark, file = tmp_path / "ran", tmp_path / "weights.pth"
    content = {"0.weight": Bomb(mark)}
    if write == "pickle":
        file.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=write == "torch")
    refusal("cannot be read as weights", load_weights, small(), file)
    assert not mark.exists()


def test_foreign_and_broken_files_are_one_error(tmp_path):
    contents = {"empty": b"", "text": b"hello", "zip": b"PK\x03\x04rest", "null": b"\0" * 64}
    files = {f"{name}{suffix}": contents[name] for suffix in (".pth", ".pt", ".safetensors") for name in contents}
    for index, content in enumerate(([torch.ones(2)], {"a": torch.ones(2), "lr": 0.1}, small(), small().state_dict())):
        torch.save(content, tmp_path / f"{index}.pth")
    files["3.pth"] = (tmp_path / "3.pth").read_bytes()[:400]
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "folder.pth").mkdir()
    absent = [f"absent{suffix}" for suffix in (".pth", ".safetensors", "")]
    for name in (*files, "0.pth", "1.pth", "2.pth", "folder.pth", *absent):
        refusal(re.escape(name), load_weights, small(), tmp_path / name)


def test_a_fingerprint_sees_names_types_shapes_and_bytes():
    module = small()
    same, buffer = copy.deepcopy(module), copy.deepcopy(module)
    assert fingerprint(module) == fingerprint(same) == fingerprint(torch.jit.script(module.eval()))
    assert len(fingerprint(module)) == 64
    same[0].weight.data.view(-1)[0] += 1e-3
    buffer[1].running_mean += 1
    others = [same, copy.deepcopy(module).bfloat16(), nn.Sequential(module), nn.Sequential(nn.Linear(2, 3), nn.ReLU())]
    assert len({fingerprint(item) for item in (module, buffer, *others)}) == 6
    assert parameter_count(torch.jit.script(module)) == parameter_count(module) == 3 * 4 + 4 + 8
