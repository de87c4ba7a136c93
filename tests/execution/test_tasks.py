"""What a backend does with a model other than running it: which case is meant, files that are whole or not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import helper, numpy_helper

from inferlens.errors import InferlensError
from inferlens.execution import tasks
from inferlens.execution.protocol import Began, Failure, TaskAnswer, TaskJob
from inferlens.execution.subprocess import Outcome
from inferlens.record.record import Phase, Warning
from inferlens.spec.case import Case

CASE = Case(model="fake:demo", backend="onnxruntime", variant="cpu")


def worker(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], object], answer: TaskAnswer | None = None, **outcome: Any
) -> list[TaskJob]:
    """Puts ``write`` in the place of the process that does the task; gives the jobs it was asked to do."""
    jobs: list[TaskJob] = []

    def launch(job: TaskJob, *, timeout: float, on_event: Any) -> Outcome:
        jobs.append(job)
        on_event(Began("export"))
        write(Path(job.arguments.get("path", "")))
        return Outcome(answer=msgspec.json.encode(answer) if answer else b"", **outcome)

    monkeypatch.setattr(tasks, "launch", launch)
    return jobs


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("a.onnx", "onnxruntime"), ("a.pt", "torchscript"), ("a.pt2", "pytorch"), ("a.engine", "tensorrt"),
        ("a.plan", "tensorrt"),
        ("a.ts", "torch_tensorrt"), ("a.ep", "torch_tensorrt"),
    ],
)  # fmt: skip
def test_the_suffix_says_who_writes_a_file(name: str, backend: str) -> None:
    assert tasks.saver(Path(name)) == backend
    assert tasks.saver(Path(name), f"{backend}:any") == f"{backend}:any"


@pytest.mark.parametrize(
    ("name", "backend", "words"),
    [
        ("a.onxx", None, "did you mean .onnx"),
        ("a", None, "files named 'a'. Expected: one of .engine, .ep, .onnx, .plan, .pt, .pt2, .ts."),
        ("a.ONNX", None, "files named '.ONNX'"),
        ("a.pt", "onnxruntime", "Expected: one of .onnx. Try: --to a.onnx"),
        ("a.onnx", "openvino:cpu", "Try: inferlens export without --backend"),
        ("a.onnx", "onnxrutime", "did you mean onnxruntime"),
    ],
)
def test_who_cannot_write_a_file_is_one_message(name: str, backend: str | None, words: str) -> None:
    with pytest.raises(InferlensError) as raised:
        tasks.saver(Path(name), backend)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"model": "fake:demo", "precision": "fp32,fp16"}, "This takes one case, not 2."),
        ({"model": "fake:demo", "batch": "1,2,3"}, "This takes one case, not 3."),
        ({"model": "fake:a,fake:b"}, "This takes one model."),
        ({"model": "fake:demo", "option": "fake.latencyy=1"}, "did you mean latency?"),
    ],
)
def test_a_task_takes_one_case(words: dict[str, Any], message: str) -> None:
    with pytest.raises(InferlensError, match=message.replace("?", r"\?")):
        tasks.single(words, "fake:steady")


def test_the_one_case_that_is_meant() -> None:
    case = tasks.single({"model": "fake:demo", "input": "x=1..4x3:opt=2", "seed": 3}, "fake:fast")
    assert case.label == "fake:fast fp32 batch 2 cpu"
    assert case.seed == 3


def test_what_was_done_and_said_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = TaskAnswer(
        result=msgspec.Raw(b'"done"'), phases=(Phase("export", 1.5),), facts={"a": 1}, warnings=(Warning("w", "Mind."),)
    )
    jobs = worker(monkeypatch, lambda _: None, said)
    heard: list[str] = []
    cache = tmp_path / "c"
    done = tasks.run("save", CASE, str, {"path": "x"}, trust=True, rebuild=True, cache=cache, phase=heard.append)
    assert (done.result, done.case, done.phases[0].seconds, done.facts) == ("done", CASE, 1.5, {"a": 1})
    assert [warning.message for warning in done.warnings] == ["Mind."]
    assert heard == ["export"]
    (job,) = jobs
    assert (job.trust, job.rebuild, job.cache) == (True, True, str(cache.resolve()))
    assert not Path(job.folder).exists()


def test_a_file_and_what_belongs_to_it_appear_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path) -> None:
        path.write_text("new")
        path.with_name(f"{path.name}.data").write_text("weights")
        assert not (tmp_path / "deep" / "m.onnx").exists()

    worker(monkeypatch, write, TaskAnswer())
    tasks.save(tmp_path / "deep" / "m.onnx", CASE, cache=tmp_path / "cache")
    found = {path.name: path.read_text() for path in (tmp_path / "deep").iterdir()}
    assert found == {"m.onnx": "new", "m.onnx.data": "weights"}


FAILED = TaskAnswer(failure=Failure(what="The disk is full.", expected="room", hint="make some"))


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        (FAILED, {}, "The disk is full. Expected: room. Try: make some"),
        (
            None,
            {"status": "crashed", "reason": "killed by SIGSEGV", "tail": ("one", "two")},
            "killed by SIGSEGV.\n  one",
        ),
        (
            None,
            {"status": "timed out", "reason": "not done after 1 s, during load", "tail": ("File one, line 2",)},
            "onnxruntime:cpu fp32 batch 1 cpu: not done after 1 s, during load. Try: a longer --timeout",
        ),
    ],
)
def test_a_task_that_fails_leaves_what_was_there(
    answer: TaskAnswer | None, outcome: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.onnx").write_text("old")
    worker(monkeypatch, lambda path: path.write_text("half"), answer, **outcome)
    with pytest.raises(InferlensError) as raised:
        tasks.save(tmp_path / "m.onnx", CASE, cache=tmp_path / "cache")
    assert words in str(raised.value)
    assert "File one" not in str(raised.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_text() == "old"


def test_a_task_that_fails_leaves_no_folder_that_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old").mkdir()
    worker(monkeypatch, lambda path: path.write_text("half"), FAILED)
    for place in ("old/m.onnx", "old/new/m.onnx", "new/deep/m.onnx"):
        with pytest.raises(InferlensError):
            tasks.save(tmp_path / place, CASE, cache=tmp_path / "cache")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["old"]


def graph(path: Path, data: str = "") -> None:
    """Writes a graph with one weight, in the file ``data`` beside it if that is named."""
    weight = numpy_helper.from_array(np.ones((1000, 10), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, size])
        for name, size in (("x", 1000), ("y", 10))
    )
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], [weight]))
    onnx.save(model, path, save_as_external_data=bool(data), location=data or None)


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ("m.onnx.data", "", False),
        ("m.onnx.data", "m.onnx.data", True),
        ("", "", True),
        ("other.data", "", True),
    ],
    ids=["its own", "written anew", "of nobody", "by another name"],
)
def test_weights_of_a_graph_that_is_replaced_go_with_it(
    old: str, new: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.onnx.data").write_text("somebody's")
    graph(tmp_path / "m.onnx", old)
    before = {path.name for path in tmp_path.iterdir()}
    worker(monkeypatch, lambda path: path.write_text("half"), FAILED)
    with pytest.raises(InferlensError):
        tasks.save(tmp_path / "m.onnx", CASE, cache=tmp_path / "cache")
    assert {path.name for path in tmp_path.iterdir()} == before
    worker(monkeypatch, lambda path: graph(path, new), TaskAnswer())
    tasks.save(tmp_path / "m.onnx", CASE, cache=tmp_path / "cache")
    assert {path.name for path in tmp_path.iterdir()} == before - (set() if kept else {"m.onnx.data"})
    onnx.checker.check_model(str(tmp_path / "m.onnx"))


def test_where_nothing_can_be_kept_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(InferlensError, match=r"results/.cache cannot be written: .+") as caught:
        tasks.save(tmp_path / "m.onnx", CASE, cache=tmp_path / "results" / ".cache")
    assert caught.value.hint == "another folder to work in"
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


ENGINE = replace(CASE, backend="tensorrt")


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: tasks.save(folder / "m.onnx", CASE, cache=folder / "cache"),
        lambda folder: tasks.build(folder / "m.engine", ENGINE, 1, cache=folder / "cache"),
    ],
    ids=["save", "build"],
)
def test_an_interrupted_task_leaves_nothing_behind(
    write: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(path: Path) -> None:
        (path.parent / f".{path.name}.half").write_text("half")
        raise KeyboardInterrupt

    worker(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_name_that_is_too_long_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, lambda path: path.write_text("new"), TaskAnswer())
    for suffix in (".onnx", ".pt"):
        with pytest.raises(InferlensError, match="cannot be written: File name too long"):
            tasks.save(tmp_path / f"{'a' * 300}{suffix}", CASE, cache=tmp_path / "cache")
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.parametrize("place", ["a file/m.onnx", "folder"])
def test_a_place_that_cannot_be_written_is_one_message(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").write_text("")
    (tmp_path / "folder" / "full").mkdir(parents=True)
    worker(monkeypatch, lambda path: path.write_text("new"), TaskAnswer())
    with pytest.raises(InferlensError, match="cannot be written: "):
        tasks.save(tmp_path / place, CASE, cache=tmp_path / "cache")
    assert not list(tmp_path.rglob(".inferlens-*"))


def test_a_task_that_a_backend_does_not_know_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(InferlensError, match="The backend 'onnxruntime' has no 'build'") as raised:
        tasks.run("build", CASE, object, cache=tmp_path)
    assert raised.value.hint == "--backend tensorrt"
    with pytest.raises(InferlensError) as raised:
        tasks.run("partition", CASE, object, cache=tmp_path)
    assert raised.value.hint == "--backend torch_tensorrt"
