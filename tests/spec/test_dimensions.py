"""Inputs of files whose sizes have names: what is missing is said at once, and one name has one size."""

import csv
import json
import shlex

import numpy as np
import onnx
import pytest
import torch
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from inferlens.models.resolve import check, feeds, find, load, with_named_sizes
from inferlens.spec.case import Case, TensorSpec
from inferlens.spec.plan import Plan
from tests.commands import inferlens
from tests.models.loading import graph
from tests.refusals import refusal

QUICK = ("-b", "onnxruntime:cpu", "--quick", "--mode", "latency", "--iterations", "3", "--warmup", "1")
NAMES = ("input_ids", "attention_mask", "token_type_ids")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """Inputs as Optimum exports BERT's: three of batch_size x sequence_length."""
    random = np.random.default_rng(0)
    weights = [numpy_helper.from_array(random.standard_normal((100, 8)).astype(np.float32), "words")]
    weights.append(numpy_helper.from_array(np.array([2]), "axes"))
    nodes = [
        helper.make_node("Gather", ["words", NAMES[0]], ["embedded"]), helper.make_node("Add", NAMES[1:], ["sum"]),
        helper.make_node("Cast", ["sum"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "axes"], ["mask3"]),
        helper.make_node("Mul", ["embedded", "mask3"], ["y"]),
    ]  # fmt: skip
    inputs = dict.fromkeys(NAMES, ("batch_size", "sequence_length"))
    path = tmp_path_factory.mktemp("bert") / "bert.onnx"
    onnx.save(graph(nodes, inputs, weights, kind=TensorProto.INT64), path)
    return path


def inputs_of(path, *, batch=1, asked=(), dims=()):
    plan = Plan.from_words({"model": str(path), "input": list(asked), "dim": dims})
    model_info = with_named_sizes(find(str(path)), plan, None)
    case = Case(model=model_info.spec, backend="onnxruntime", batch=batch, inputs=(model_info.inputs or plan.input)[0])
    return [spec.text.replace(":int64", "") for spec in load(case).inputs]


def test_all_missing_inputs_are_one_message_with_a_command_that_works(bert):
    command = ("bench", "bert.onnx", *QUICK)
    refused = inferlens(*command, cwd=bert.parent)
    assert refused.returncode == 2
    assert all(f"{name} (1 x sequence_length)" in refused.stderr for name in NAMES)
    tried = refused.stderr.partition("Try: ")[2].strip()
    assert tried == f"inferlens {' '.join(command)} --dim sequence_length=128"
    done = inferlens(*shlex.split(tried)[1:], cwd=bert.parent)
    assert done.returncode == 0, done.stderr
    assert "1x128:int64" in done.stdout


@pytest.mark.parametrize(("words", "shape"), [
    ({"asked": ("attention_mask=1x64:int64",)}, "1x64"), ({"dims": {"sequence_length": 32}}, "1x32"),
    ({"batch": 2, "dims": ["sequence_length=1..64:opt=16", "batch_size=1..4"]}, "1..4x1..64:opt=4x16"),
    ({"batch": 8, "asked": ("attention_mask=2x64:int64",)}, "8x64"),
])  # fmt: skip
def test_a_size_or_a_batch_of_one_input_is_that_of_all_with_its_name(bert, words, shape):
    assert inputs_of(bert, **words) == [f"{name}={shape}" for name in NAMES]


@pytest.mark.parametrize(("asked", "dims", "message"), [
    (("attention_mask=1x64:int64", "input_ids=1x128:int64"), (), "input_ids and 64 in attention_mask"),
    (("attention_mask=1x64:int64",), "sequence_length=128", "--dim sequence_length and 64 in attention_mask"),
])  # fmt: skip
def test_two_sizes_for_one_name_are_an_error_that_names_both_inputs(bert, asked, dims, message):
    refusal(f"'?sequence_length'? is 128 in {message}", inputs_of, bert, asked=asked, dims=dims)


def test_an_unknown_name_is_one_message(bert):
    error = refusal("There is no dimension of an input 'sequence'", inputs_of, bert, dims="sequence=128")
    assert "sequence_length" in error.hint


def test_a_name_that_is_a_sum_follows_its_terms(tmp_path):
    shapes = {"ids": ["batch", "new"], "past": ["batch", "old", 4], "mask": ["batch", "old + new"]}
    path = tmp_path / "decoder.onnx"
    onnx.save(graph([helper.make_node("Relu", ["ids"], ["y"])], shapes), path)
    sized = [f"{text}:float32" for text in ("ids=1x1", "past=1x127x4", "mask=1x128")]
    assert inputs_of(path, dims=["new=1", "old=127"]) == sized
    assert refusal("", inputs_of, path).hint == "--dim new=128 --dim old=128"


def test_an_exported_programs_symbol_has_one_size(tmp_path):
    class Sum(torch.nn.Module):
        def forward(self, a, b):
            return a + b

    size = torch.export.Dim("length", min=2, max=64)
    feed, shapes = (torch.zeros(1, 8), torch.zeros(1, 8)), {"a": {1: size}, "b": {1: size}}
    torch.export.save(torch.export.export(Sum(), feed, dynamic_shapes=shapes), tmp_path / "sum.pt2")
    assert inputs_of(tmp_path / "sum.pt2", asked=("a=1x16",)) == ["a=1x16:float32", "b=1x16:float32"]
    model_info = find(str(tmp_path / "sum.pt2"))
    plan = Plan.from_words({"model": "sum.pt2", "input": ["a=1x16", "b=1x8"]})
    refusal("is 16 in a and 8 in b", check, model_info, plan)


def test_other_commands_and_plan_files_take_names_too(bert):
    (bert.parent / "plan.toml").write_text('model = "bert.onnx"\n[dim]\nsequence_length = 16\n')
    done = inferlens("bench", "plan.toml", "-b", "onnxruntime:cpu", "--dry-run", "--json", cwd=bert.parent)
    assert '"name": "input_ids"' in done.stdout
    words = ("bert.onnx", "--backend", "onnxruntime:cpu", "--dim", "sequence=16")
    for command in (("profile", *words), ("tune", *words), ("ab", *words, "onnxruntime", "openvino"),
                    ("export", *words, "--to", "x.onnx")):  # fmt: skip
        refused = inferlens(*command, cwd=bert.parent)
        assert (refused.returncode, "sequence_length" in refused.stderr) == (2, True), command


def test_several_sizes_are_rows_with_a_column_and_a_race_each(bert):
    words = ("bert.onnx", *QUICK, "--output", "sizes")
    for size in ("16", "32"):  # of two runs
        done = inferlens("bench", *words, "--dim", f"sequence_length={size}", cwd=bert.parent)
        assert done.returncode == 0, done.stderr
    shown = json.loads(inferlens("show", "sizes", "--json", cwd=bert.parent).stdout)
    for row, size in zip(shown["rows"], (16, 32), strict=True):
        assert (row["sizes"], row["inputs"].count(f"1x{size}:")) == ({"sequence_length": size}, 3)
    for by, column in (((), "sequence_length"), (("--by", "sequence_length"), "value")):
        table = inferlens("show", "sizes", *by, "--format", "csv", cwd=bert.parent).stdout
        assert [row[column] for row in csv.DictReader(table.splitlines())] == ["16", "32"]


MODELS = """
import torch

class Encoder(torch.nn.Module):
    def forward(self, input_ids, attention_mask, scale):
        return input_ids * attention_mask * scale

def encoder():
    return Encoder(), {name: torch.ones(1, 128, dtype=torch.int64) for name in ("input_ids", "attention_mask")} | {
        "scale": torch.ones(1, 1)
    }

class Blended(torch.nn.Module):
    def forward(self, image, weight):
        return image * weight

def blended():
    return Blended(), (torch.ones(1, 3, 8, 8), torch.ones(1, 1, 1, 1))

def pooled():
    return torch.nn.AdaptiveAvgPool2d(1), torch.ones(1, 3, 8, 8)
"""


@pytest.mark.parametrize(("factory", "words", "shapes"), [
    ("encoder", {"dim": "sequence_length=32,64"}, [["1x32", "1x32", "1x1"], ["1x64", "1x64", "1x1"]]),
    ("encoder", {"input": "input_ids=1x32,1x64:int64"}, [["1x32", "1x32", "1x1"], ["1x64", "1x64", "1x1"]]),
    ("encoder", {"input": "scale=1x128"}, [["1x128", "1x128", "1x128"]]), ("blended", {}, [["1x3x8x8", "1x1x1x1"]]),
    ("pooled", {"dim": {"image_size": [4, 16]}}, [["1x3x4x4"], ["1x3x16x16"]]),
    ("pooled", {"input": "input=1x3x4x6,2x3x8x8"}, [["1x3x4x6"], ["2x3x8x8"]]),
])  # fmt: skip
def test_inputs_of_a_factory_have_usual_names(factory, words, shapes, tmp_path, monkeypatch):
    (tmp_path / "sized.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    plan = Plan.from_words({"model": f"sized.py:{factory}", **words})
    model = check(find(plan.model[0]), plan)
    whole = Case(model=model.spec, backend="pytorch")
    cases = [replace(whole, inputs=inputs, batch=batch) for inputs, batch in feeds(plan, model)]
    assert [["x".join(map(str, spec.shape)) for spec in load(case).inputs] for case in cases] == shapes


def test_a_case_has_the_same_digest_whether_dimensions_have_names_or_not():
    plain, named = (TensorSpec("ids", (1, 32), "int64", names=names) for names in ((), ("", "sequence_length")))
    one, case = (Case(model="bert.onnx", backend="pytorch", inputs=(spec,)) for spec in (plain, named))
    assert one.digest == case.digest
    assert case.label == f"{one.label} sequence_length=32"


@pytest.mark.parametrize(("words", "message"), [
    *(({"dim": text}, "gives no size of a dimension")
      for text in ("sequence_length", "sequence_length=0", "n=1x2", "n=3:int64", "=3")),
    ({"input": ["a=1x2,1x3", "b=1x2,1x3,1x4"]}, "2 and 3 shapes"), ({"input": ["a=1x2", "a=1x3"]}, "given twice"),
])  # fmt: skip
def test_words_that_give_no_sizes_are_refused(words, message):
    refusal(message, Plan.from_words, {"model": "bert.onnx", **words})
