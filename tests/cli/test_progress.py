"""What is said while cases are measured: in a pipe, and in a terminal that is clean afterwards."""

import io
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

import inferlens
from inferlens.cli import screen
from inferlens.cli.progress import Bar
from inferlens.errors import Unsupported
from inferlens.execution.protocol import PlannedCase
from inferlens.models.model import ModelInfo
from inferlens.record.record import Record
from inferlens.spec.case import Case
from tests.snapshots import screens_test
from tests.views.samples import WRONG, case, failure, record

RESNET = ModelInfo(spec="torchvision:resnet18", name="resnet18", format="module", argument="resnet18")


def told(cases: list[Case], ended: list[Any], every: float = 20.0, refused: tuple[int, ...] = ()) -> str:
    """The lines of a pipe, of cases that take ``every`` so many seconds."""
    out, clock = io.StringIO(), itertools.count(step=every)
    with Bar(Console(file=out, highlight=False), clock=lambda: float(next(clock))) as bar:
        no = Unsupported("No such device.")
        bar.planned([PlannedCase(each, RESNET, no if place in refused else None) for place, each in enumerate(cases)])
        for each in ended:
            bar.began(each.case)
            bar.done(each, Path())
    return out.getvalue().rstrip()


FIVE = [case(name) for name in ("pytorch", "onnxruntime:cpu", "torch_compile", "openvino", "tensorrt")]
THREE = [case(name) for name in ("pytorch", "openvino", "onnxruntime:cpu")]
BATCHES = [case(batch=batch) for batch in (1, 8, 9)]
THREADS = [case(batch=batch, threads=threads) for batch in (1, 8) for threads in (1, 2)]
ENDED = [
    record(FIVE[0], samples=(0.025,) * 9), record(FIVE[1], samples=(0.018,) * 9),
    record(FIVE[2], samples=(0.012,) * 9, agreement=WRONG),
    failure(FIVE[3], reason="It broke\x1b[2J\nbadly."), failure(FIVE[4], "unsupported", "No such device."),
]  # fmt: skip


def at_10_ms(*ways: Case) -> list[Record]:
    return [record(way, samples=(0.01,) * 9) for way in ways]


@contextmanager
def bar_of(cases: list[Case], **console: Any) -> Iterator[tuple[Bar, io.StringIO]]:
    """A bar of planned cases, and what it writes."""
    out = io.StringIO()
    with Bar(Console(file=out, **console)) as bar:
        bar.planned([PlannedCase(each, RESNET, None) for each in cases])
        yield bar, out


def rounds() -> str:
    """The lines of two ways that are measured twice, meet, and meet in finals."""
    with bar_of(THREE[:2]) as (bar, out):
        for each in THREE[:2] * 2:
            bar.done(record(each), Path())
        bar.round(1, THREE[:2], "openvino 1.07x pytorch (1.01 to 1.13)")
        for number in (1, 4):
            bar.round(number, THREE[:2], "openvino 1.07x pytorch", finals=3)
    assert len(bar.records) == 4
    return out.getvalue().rstrip()


def one_of_two_races() -> str:
    """The lines of a round of one of several races."""
    with bar_of(BATCHES[:2]) as (bar, out):
        bar.round(2, BATCHES[1:2], "openvino 1.07x pytorch")
    return out.getvalue().rstrip()


test_lines = screens_test("progress", {
    "a line for each case": lambda: told(FIVE, ENDED, refused=(4,)),
    "words tell cases apart": lambda: told(THREADS, [failure(THREADS[0]), *at_10_ms(*THREADS[1:])]),
    "rounds": rounds,
    "one of two races": one_of_two_races,
})  # fmt: skip


def test_the_clock_runs_on_once_each_case_was_measured():
    seconds = [0.0]
    with bar_of(THREE[:2], force_terminal=True, width=100, get_time=lambda: seconds[0]) as (bar, out):
        for seconds[0] in (30.0, 95.0):
            for each in THREE[:2]:
                bar.began(each)
                bar.done(record(each), Path())
        bar.progress(0.5)
        assert ("0:00:30" in out.getvalue(), "0:01:35" in out.getvalue()) == (True, True)


def test_a_reason_is_never_cut():
    reason = "word " * 100 + "why"
    assert any(line.endswith(reason) for line in told([case()], [failure(case(), reason=reason)]).splitlines())


def test_what_is_under_way_is_not_cut_off_unmarked():
    text = "openvino:cpu fp32 batch 1 cpu: what the device reaches at best"
    with bar_of([], force_terminal=True, width=100) as (bar, out):
        bar.doing(text)
        bar.doing(text[:50])
    assert (f"{text[:49]}… " in out.getvalue(), f"{text[:50]} " in out.getvalue()) == (True, True)


def test_a_name_is_no_emoji(capsys):
    screen.note("factory:two:make")
    assert capsys.readouterr().err == "factory:two:make\n"


def test_from_python_a_terminal_shows_the_progress_and_nothing_else_does(tmp_path, monkeypatch, capsys, one_process):
    words = {"backend": "fake:steady,fake:fast", "quick": True, "iterations": 3, "output": tmp_path}
    done = inferlens.bench("fake:demo", **words)
    assert f"inferlens show {tmp_path / 'demo'} --plot" in " ".join(str(done).replace("\\", " ").split())
    assert capsys.readouterr().err == ""
    out = io.StringIO()
    monkeypatch.setattr(screen, "errors", lambda: Console(file=out, force_terminal=True, width=100))
    inferlens.bench("fake:demo", rerun=True, **words)
    assert "fake:fast" in out.getvalue()
