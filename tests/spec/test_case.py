"""Cases: labels, folders, inputs, layers that are kept."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlens.backends import BACKENDS
from inferlens.errors import InferlensError, Unsupported
from inferlens.spec.case import Case, TensorSpec, keep_of, kept_layers, split_shared_words, with_batch
from inferlens.spec.plan import Plan, as_plan, bench_words, toml_words, words_of
from tests.refusals import refusal

CASE = Case(model="torchvision:resnet18", backend="onnxruntime", variant="cpu")


def test_the_usual_case_has_a_readable_folder():
    assert CASE.folder == "onnxruntime-cpu-fp32-b1-cpu"
    assert msgspec.structs.replace(CASE, batch=8, threads=2).folder == "onnxruntime-cpu-fp32-b8-cpu-t2"


def test_whatever_differs_gives_another_folder():
    changes = [
        {"variant": "cuda"}, {"precision": "fp16"}, {"batch": 2}, {"batch": None}, {"device": "cuda"}, {"threads": 1},
        {"options": {"a": 1}}, {"options": {"a": 2}}, {"inputs": (TensorSpec("x", (1, 3)),)}, {"weights": "x.pth"},
        {"seed": 1}, {"io": "host"}, {"inputs": (TensorSpec.parse("x=1..4x3"),)},
    ]  # fmt: skip
    folders = {CASE.folder, *(msgspec.structs.replace(CASE, **change).folder for change in changes)}
    assert len(folders) == 1 + len(changes)


@pytest.mark.parametrize(("text", "spec"), [
    ("x=1x3x224x224", TensorSpec("x", (1, 3, 224, 224))),
    ("ids=2x16:int64:0..30522", TensorSpec("ids", (2, 16), "int64", 0, 30522)),
    ("t=scalar:float16", TensorSpec("t", (), "float16")),
    *((f"{name}=2x16:int64:0..9", TensorSpec(name, (2, 16), "int64", 0, 9))
      for name in ("x:0", "x=y", "x:0=1", "a=2x3", "a=b:opt", "x:opt", "serving/x:0", "two words", "=")),
])  # fmt: skip
def test_inputs_are_written_as_name_shape_type(text, spec):
    assert TensorSpec.parse(text) == TensorSpec.parse(str(spec)) == spec
    ranged = TensorSpec.parse(f"{spec.name}=1..16x3:float16:opt=2")
    assert (ranged.name, ranged.dtype, ranged.profile) == (spec.name, "float16", ((1, 3), (2, 3), (16, 3)))


def test_inputs_are_each_given_once():
    assert TensorSpec.parse_all(["x=2x4", "x:0=3x4"]) == ((TensorSpec("x", (2, 4)), TensorSpec("x:0", (3, 4))),)
    refusal("The input 'x' is given twice", TensorSpec.parse_all, ["x=2x4", "y=1", "x=3x4"])


@pytest.mark.parametrize(("text", "least", "shape", "most"), [
    ("x=1..16x3x8", (1, 3, 8), (16, 3, 8), (16, 3, 8)), ("x=1..16x3x8:opt=2", (1, 3, 8), (2, 3, 8), (16, 3, 8)),
    ("x=1..16x3x8:opt=2x3x8", (1, 3, 8), (2, 3, 8), (16, 3, 8)), ("x=4..4x3", (4, 3), (4, 3), (4, 3)),
    ("x=1..16x3x8..32:opt=2x16", (1, 3, 8), (2, 3, 16), (16, 3, 32)),
])  # fmt: skip
def test_a_range_gives_the_shapes_to_prepare_for(text, least, shape, most):
    spec = TensorSpec.parse(text)
    assert (spec.shape, spec.profile, spec.dynamic) == (shape, (least, shape, most), least != most)


def batched(specs, batch=4):
    return [spec.shape for spec in with_batch(specs, batch)]


def test_a_batch_is_in_the_range_and_of_all_inputs_that_share_it():
    specs = (TensorSpec("ids", (1, 16)), TensorSpec("mask", (1, 16)), TensorSpec("table", (5, 2)), TensorSpec("t", ()))
    assert (batched(specs), with_batch(specs, None)) == ([(4, 16), (4, 16), (5, 2), ()], specs)
    free, fixed = (with_batch((TensorSpec.parse(text),), 4)[0] for text in ("x=1..16x3", "x=1..16x3:opt=2"))
    assert free.profile == ((1, 3), (4, 3), (16, 3))  # without an optimum the measured batch is it
    assert (fixed.shape, fixed.profile) == ((4, 3), ((1, 3), (2, 3), (16, 3)))
    (specs,) = TensorSpec.parse_all(["ids=2..8x16:opt=2", "mask=2..8x16", "t=1..9x2"])
    assert batched(specs) == [(4, 16), (4, 16), (9, 2)]
    for batch in (1, 9):
        error = refusal(f"Batch {batch} is outside of the range of the input 'ids'", with_batch, specs, batch)
        assert type(error) is Unsupported


@pytest.mark.parametrize("text", [
    "x=1..4x3:opt=5", "x=2..4x3:opt=1", "x=1..4x3:opt=2x4", "x=1..4x3:opt=2x3x1", "x=4x3:opt=4", "x=scalar:opt=1",
    "x=4..1x3", "x=1x3:int64:9..5", "x=1x3:int64:5..5", "x=0..4x3", "x=0x3", "x=1..x3", "x=1...4x3:opt=2",
    "x=1..axb:opt=2x3", "x=1..4x3:opt=", "x=1..4x3:opt=-1", "x=-1:int64", "x=\u0661x3", "=1x3", "",
    "x=" + "9" * 5000, "x=1:int64:0.." + "9" * 5000, "x=" + "1x" * 50_000,
])  # fmt: skip
def test_what_describes_no_input_is_one_short_message(text):
    error = refusal("does not describe", TensorSpec.parse, text)
    assert (bool(error.expected), len(str(error)) < 500) == (True, True)


@given(st.text(alphabet="xopt=.:0123456789-int64 ", max_size=40))
def test_any_text_is_a_spec_or_one_message(text):
    try:
        spec = TensorSpec.parse(f"x={text}")
    except InferlensError:
        return
    assert all(a <= n <= b for a, n, b in zip(spec.profile[0], spec.shape, spec.profile[2], strict=True))


# A case in one text, and back to the words of a plan

NAMES = BACKENDS.names()


@pytest.mark.parametrize(("text", "words"), [
    ("pytorch", {}), ("onnxruntime:cpu fp16", {"precision": "fp16"}), ("fp16 fake", {"precision": "fp16"}),
    ("pytorch fp16, batch=8, cuda", {"precision": "fp16", "batch": "8", "device": "cuda"}),
    ("pytorch batch 8 4 threads depth 2", {"batch": "8", "threads": "4", "depth": "2"}),
    ("pytorch 1 thread", {"threads": "1"}),
    ("fake 'trouble=memory error'", {"option": {"fake.trouble": "memory error"}}),
    ("pytorch host io cold rotating", {"io": "host", "cold": True, "rotate": True}),
    ("pytorch threads=1 device=cpu io=host", {"threads": "1", "device": "cpu", "io": "host"}),
    ("fake latency=2 fake.per_item=0.5", {"option": {"fake.latency": "2", "fake.per_item": "0.5"}}),
    ("fake input=x=1x3x8x8 weights=w.pth seed=3", {"input": "x=1x3x8x8", "weights": "w.pth", "seed": "3"}),
])  # fmt: skip
def test_texts_and_what_they_mean(text, words):
    assert words_of(text, NAMES) == {"backend": text.removeprefix("fp16 ").split()[0], "option": {}, **words}


def test_a_label_is_understood():
    case = Case(
        model="fake:demo", backend="fake", variant="noisy", precision="fp16", batch=8, threads=4, io="host", cold=True,
        rotate=True, depth=2, checkout="../old", options={"latency": 2.5, "trouble": "none"},
    )  # fmt: skip
    assert words_of(case.label, NAMES) == {
        "backend": "fake:noisy", "precision": "fp16", "batch": "8", "device": "cpu", "threads": "4", "io": "host",
        "cold": True, "rotate": True, "depth": "2", "checkout": "../old",
        "option": {"fake.latency": "2.5", "fake.trouble": "none"},
    }  # fmt: skip


@pytest.mark.parametrize(("text", "said"), [
    ("fp16 torch", "'torch' is not a word"), ("pytorch onnxruntime", "'onnxruntime' is not a word"),
    ("pytorch fp61", "'fp61' is not a word"), ("pytorch batch", "'batch' is not a word"),
    ("pytorch 4", "'4' is not a word"), ("pytorch batch=", "is not a word"), ("pytorch fp16 fp32", "precision twice"),
    ("fake latency=1 fake.latency=2", "latency twice"), ("fake 'trouble=none", "describes no case"),
])  # fmt: skip
def test_what_means_nothing_is_refused(text, said):
    refusal(said, words_of, text, NAMES)


# Layers that are kept


def test_precisions_hold_up_to_the_next_one_and_order_is_always_the_same():
    text = keep_of(["fp32:head,features.0", "fp16:neck,fp32:a"])
    assert text == "fp32:a,features.0,head,fp16:neck"
    case = Case(model="m", backend="b", precision="int8", keep=text)
    assert kept_layers(case) == {"a": "fp32", "features.0": "fp32", "head": "fp32", "neck": "fp16"}
    assert keep_of([]) == ""
    for text in ("head", "int8:head", "fp32:", "fp32:a b", "fp32:a,fp16:a"):
        refusal("", keep_of, [text])


def test_a_case_is_told_apart_by_it_and_said_with_it(tmp_path):
    other = Case(model="m", backend="onnxruntime", variant="cpu", precision="int8")
    case = msgspec.structs.replace(other, keep="fp32:a,b")
    assert (case.folder != other.folder, case.label.endswith(" keep=fp32:a,b")) == (True, True)
    assert words_of(case.label, ["onnxruntime"])["keep"] == "fp32:a,b"
    assert bench_words(case, "cpu")[-2:] == ["--keep", "fp32:a,b"]
    (path := tmp_path / "plan.toml").write_text(as_plan(case))
    assert Plan.from_words(toml_words(path, "plan")).keep == "fp32:a,b"


def test_cases_are_told_apart_by_field_and_not_by_equal_words():
    one, other = Case(model="m", backend="fake", options={"x": "a b"}), Case(model="m", backend="fake", keep="x=a")
    assert split_shared_words([one.identity_words(), other.identity_words()])[1] == ["x=a b", "keep=x=a"]
