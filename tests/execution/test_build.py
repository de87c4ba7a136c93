"""What a backend does with a model other than running it: which case is meant, files that are whole or not there."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from inferlens.errors import InferlensError
from inferlens.execution import child as processes
from inferlens.execution import deploy as build
from inferlens.execution.cases import cases_on, only_case
from inferlens.execution.child import Outcome
from inferlens.execution.protocol import PhaseStart, TaskResult
from inferlens.record.record import Phase, Warning
from inferlens.spec.case import Case
from tests.commands import ended

pytestmark = pytest.mark.usefixtures("probed_here", "without_torch")
FINE = Outcome(TaskResult())
CASE = Case(model="fake:demo", backend="onnxruntime", variant="cpu")


def worker(monkeypatch, write, outcome):
    """Puts ``write`` in the place of the process that does the task; gives the jobs it was asked to do."""
    jobs = []

    def launch(_, job, __, *, timeout, on_event):
        jobs.append(job)
        on_event(PhaseStart("export"))
        write(Path(job.path))
        return outcome

    monkeypatch.setattr(processes, "launch", launch)
    return jobs


@pytest.mark.parametrize(("words", "message"), [
    ({"model": "fake:demo", "precision": "fp32,fp16"}, "This command takes one case, not 2."),
    ({"model": "fake:a,fake:b"}, "This command takes one model."),
    ({"model": "fake:demo", "option": "fake.latencyy=1"}, "did you mean latency?"),
])  # fmt: skip
def test_a_task_takes_one_case(words, message):
    with pytest.raises(InferlensError, match=message.replace("?", r"\?")):
        only_case(cases_on(words, "fake:steady"))


def test_the_one_case_that_is_meant():
    case = only_case(cases_on({"model": "fake:demo", "input": "x=1..4x3:opt=2", "seed": 3}, "fake:fast"))
    assert (case.label, case.seed) == ("fake:fast fp32 batch 2 cpu", 3)


def test_what_was_done_and_said_comes_back(tmp_path, monkeypatch):
    said = TaskResult(phases=(Phase("export", 1.5),), warnings=(Warning("w", "Mind."),))
    jobs = worker(monkeypatch, lambda _: None, Outcome(said))
    heard = []
    more = {"trust": True, "rebuild": True, "cache": tmp_path / "c", "phase": heard.append}
    assert (build.save(tmp_path / "x.onnx", CASE, **more), heard) == (said, ["export"])
    (job,) = jobs
    assert (job.trust, job.rebuild, job.cache) == (True, True, str(tmp_path / "c"))
    assert not Path(job.folder).exists()


def test_a_file_and_what_belongs_to_it_appear_together(tmp_path, monkeypatch):
    def write(path):
        path.write_text("new")
        path.with_name(f"{path.name}.data").write_text("weights")
        assert not (tmp_path / "deep" / "m.onnx").exists()

    worker(monkeypatch, write, FINE)
    build.save(tmp_path / "deep" / "m.onnx", CASE, cache=tmp_path / "cache")
    found = {path.name: path.read_text() for path in (tmp_path / "deep").iterdir()}
    assert found == {"m.onnx": "new", "m.onnx.data": "weights"}


FAILED = Outcome(TaskResult(status="failed", reason="The disk is full.", hint="make some"))


@pytest.mark.parametrize(("outcome", "words"), [
    (FAILED, "The disk is full. Try: make some"),
    (ended("crashed", "killed by SIGSEGV", ("one", "two")), "killed by SIGSEGV.\n  one"),
    (ended("timed out", "not done after 1 s", ("File one, line 2",)), "cpu fp32 batch 1 cpu: not done after 1 s"),
])  # fmt: skip
def test_a_task_that_fails_leaves_what_was_there(outcome, words, tmp_path, monkeypatch):
    (tmp_path / "m.onnx").write_text("old")
    worker(monkeypatch, lambda path: path.write_text("half"), outcome)
    with pytest.raises(InferlensError) as raised:
        build.save(tmp_path / "m.onnx", CASE, cache=tmp_path / "cache")
    assert (words in str(raised.value), "File one" in str(raised.value)) == (True, False)
    assert (sorted(path.name for path in tmp_path.iterdir()), (tmp_path / "m.onnx").read_text()) == (["m.onnx"], "old")


def test_an_interrupted_task_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(path):
        (path.parent / f".{path.name}.half").write_text("half")
        raise KeyboardInterrupt

    worker(monkeypatch, interrupt, FINE)
    with pytest.raises(KeyboardInterrupt):
        build.build(tmp_path / "m.engine", replace(CASE, backend="tensorrt"), 1, cache=tmp_path / "cache")
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.parametrize("place", ["a file/m.onnx", "folder", f"{'a' * 300}.onnx"])
def test_a_place_that_cannot_be_written_is_one_message(place, tmp_path, monkeypatch):
    (tmp_path / "a file").write_text("")
    (tmp_path / "folder" / "full").mkdir(parents=True)
    worker(monkeypatch, lambda path: path.write_text("new"), FINE)
    with pytest.raises(InferlensError, match="cannot be written: "):
        build.save(tmp_path / place, CASE, cache=tmp_path / "cache")
    assert not list(tmp_path.rglob(".inferlens-*"))


def test_a_task_that_a_backend_does_not_know_is_one_message(tmp_path):
    with pytest.raises(InferlensError, match="The backend 'onnxruntime' cannot do that") as raised:
        build.build(tmp_path / "m.engine", CASE, 1, cache=tmp_path)
    assert raised.value.hint == "--backend tensorrt"
    with pytest.raises(InferlensError) as raised:
        build.partition(CASE, cache=tmp_path)
    assert raised.value.hint == "--backend torch_tensorrt"
