"""The reason in a library's message: real messages of seven libraries, and the files that runtimes refuse."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferlens import errors
from inferlens.errors import LONGEST, Unsupported, installing, reason
from tests.commands import inferlens

ENTRIES = (Path(__file__).parent / "library_messages.txt").read_text(encoding="utf-8").split("\n### ")[1:]
MESSAGES = [(*heading.split(": ", 1), text) for heading, text in (entry.split("\n", 1) for entry in ENTRIES)]
PLACES = r"\.(cpp|cc|cu|h|py):\d|onnxruntime_src|/_src/|File \"|frame #|0x[0-9a-f]{6}|hostname|site-packages|\x1b"


@pytest.mark.parametrize(("library", "expected", "text"), MESSAGES)
def test_the_reason_in_a_message(library, expected, text):
    assert reason(text) == expected
    assert not re.search(PLACES, expected)


def raised(error: Exception, cause: BaseException | None = None) -> Exception:
    error.__cause__ = cause
    return error


class Wrapper(Exception):
    __module__ = "torch.onnx"


@pytest.mark.parametrize(("error", "expected"), [
    (RuntimeError("it is gone."), "it is gone"), (ValueError("it is gone."), "ValueError: it is gone"),
    (KeyError("x"), "KeyError: 'x'"), (MemoryError(), "MemoryError"),
    (raised(ValueError("there is no way x"), KeyError("x")), "ValueError: there is no way x"),
    (raised(RuntimeError("no engine"), RuntimeError("opset 23 is new")), "no engine: opset 23 is new"),
    (raised(RuntimeError("failed: a b c"), ValueError("a b c")), "failed: a b c"),
    (raised(Wrapper("This is step 1 of 3"), RuntimeError("a and b differ")), "a and b differ"),
    (raised(Unsupported("It cannot run: a b."), RuntimeError("/src/x.cc:1 a b")), "It cannot run: a b"),
])  # fmt: skip
def test_the_reason_of_an_error_with_causes(error, expected):
    assert reason(error) == expected


def test_a_cause_that_comes_round_ends():
    first, second = RuntimeError("one of two"), RuntimeError("two of two")
    first.__cause__, second.__cause__ = second, first
    assert reason(first) == "one of two: two of two"


def test_a_very_long_reason_ends_at_a_sentence_or_a_comma():
    sentences = reason("This is why it failed. " + "Here is more of it. " * 100)
    assert len(sentences) <= LONGEST
    assert sentences.startswith("This is why it failed. ")
    assert sentences.endswith("Here is more of it")
    assert reason(f"Known are {', '.join(f'option_{number}' for number in range(500))}").endswith("option_53, …")
    assert reason("Known is " + "word " * 150 + "here. There is more.").endswith("here"), "a sentence stays whole"


def refused_files(folder: Path) -> None:
    """Write five ONNX files that ONNX Runtime refuses."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.eye(16, dtype=np.float32), "W")
    free = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 16]) for name in "xy"]

    def node(operator: str, inputs: list[str], output: str, name: str = "", **more: Any) -> Any:
        return helper.make_node(operator, inputs, [output], name=name, **more)

    def save(name: str, nodes: list[Any], tensors: list[Any], version: int = 8) -> None:
        graph = helper.make_graph(nodes, "g", free[:1], free[1:], tensors)
        domains = [helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)]
        onnx.save(helper.make_model(graph, ir_version=version, opset_imports=domains), folder / f"{name}.onnx")

    halves = [
        numpy_helper.from_array(np.array(value, np.float16), name)
        for name, value in zip("sed", (0, 16, 1), strict=True)
    ]
    ranged = [
        node("Range", ["s", "e", "d"], "r", "/m/Range"), node("Cast", ["r"], "f", to=TensorProto.FLOAT),
        node("Add", ["x", "f"], "y"),
    ]  # fmt: skip
    shape = numpy_helper.from_array(np.array([1, 16]), "shape")
    save("ir_new", [node("MatMul", ["x", "W"], "y")], [weights], 99)
    save("dupnode", [node("MatMul", ["x", "W"], "a", "mm"), node("MatMul", ["a", "W"], "y", "mm")], [weights])
    save("fp16_range", ranged, halves)
    save("unknown_op", [node("MyOp", ["x"], "y", domain="my.domain")], [])
    save("fakebatch", [node("Reshape", ["x", "shape"], "r"), node("MatMul", ["r", "W"], "y")], [weights, shape])


@pytest.mark.parametrize(("name", "backend", "batch", "why"), [
    ("ir_new", "onnxruntime:cpu", "1", r"IR version: 99, max supported IR version: \d+"),
    ("dupnode", "onnxruntime:cpu", "1", r"two nodes with same node name \(mm\)"),
    ("fp16_range", "onnxruntime:cpu", "1", r"'tensor\(float16\)' of input parameter \(s\) of operator \(Range\)"),
    ("unknown_op", "onnxruntime:cpu", "1", r"my\.domain:MyOp\(-1\) is not a registered function/op"),
    ("unknown_op", "openvino:cpu", "1", r"my\.domain\.MyOp"),
    ("fakebatch", "onnxruntime:cpu", "4", r"Input shape:\{4,16\}, requested shape:\{1,16\}"),
])  # fmt: skip
def test_the_reason_is_in_the_row_and_the_notes(name, backend, batch, why, tmp_path):
    pytest.importorskip("onnxruntime" if backend.startswith("onnx") else "openvino")
    refused_files(tmp_path)
    words = ("-b", backend, "--batch", batch, "--quick", "--iterations", "2", "--output", "out")
    shown = inferlens("bench", f"{name}.onnx", *words, cwd=tmp_path).stdout
    assert re.search(why, " ".join(shown.split()))
    assert not re.search(PLACES, shown)
    (case,) = json.loads(inferlens("show", "out", "--view", "notes", "--json", cwd=tmp_path).stdout)["cases"]
    (note,) = [each for each in case["warnings"] if each["code"] in ("unsupported", "did-not-run")]
    assert re.search(why, note["message"])
    assert f"show --log '{case['label']}'" in note["advice"], "the whole text is one command away"
    noted = inferlens("show", "out", "--view", "notes", cwd=tmp_path).stdout
    assert re.search(why, " ".join(noted.split()))
    log = inferlens("show", "out", "--log", case["label"], cwd=tmp_path).stdout
    assert re.search(why, log)
    assert "Traceback" in log


def test_what_to_install_is_had_from_the_checkout_or_for_the_installed_package(tmp_path, monkeypatch):
    checkout = Path(__file__).parents[1]
    for folder, place in ((tmp_path, f"'{checkout}[onnx]'"), (checkout, "'.[onnx]'")):
        monkeypatch.chdir(folder)
        assert installing("onnx") == f"pip install -e {place}"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages" / "inferlens" / "errors.py"))
    assert installing("onnx") == "pip install 'inferlens[onnx]'"
