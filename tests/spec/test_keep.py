"""Layers that are kept, as a person writes them, and in every text that stands for a case."""

import pytest
from msgspec.structs import replace

from inferlens.spec.case import Case, keep_of, kept_layers
from inferlens.spec.plan import Plan, as_plan, bench_words, toml_words, words_of
from tests.refusals import refusal


def test_precisions_hold_up_to_the_next_one_and_order_is_always_the_same():
    text = keep_of(["fp32:head,features.0", "fp16:neck,fp32:a"])
    assert text == "fp32:a,features.0,head,fp16:neck"
    case = Case(model="m", backend="b", precision="int8", keep=text)
    assert kept_layers(case) == {"a": "fp32", "features.0": "fp32", "head": "fp32", "neck": "fp16"}
    assert keep_of([]) == ""


@pytest.mark.parametrize("text", ["head", "int8:head", "fp32:", "fp32:a b", "fp32:a,fp16:a"])
def test_what_says_no_layers_is_refused(text):
    refusal("", keep_of, [text])


def test_a_case_is_told_apart_by_it_and_said_with_it(tmp_path):
    other = Case(model="m", backend="onnxruntime", variant="cpu", precision="int8")
    case = replace(other, keep="fp32:a,b")
    assert (case.folder != other.folder, case.label.endswith(" keep=fp32:a,b")) == (True, True)
    assert words_of(case.label, ["onnxruntime"])["keep"] == "fp32:a,b"
    assert bench_words(case, "cpu")[-2:] == ["--keep", "fp32:a,b"]
    (path := tmp_path / "plan.toml").write_text(as_plan(case))
    assert Plan.from_words(toml_words(path, "plan")).keep == "fp32:a,b"
