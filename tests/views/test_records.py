"""What every view promises. A new view is one line in ``PICTURES``; formats come by themselves."""

import math
import re

import msgspec
import pytest

from inferlens.record.record import Memory, Record, Warning
from inferlens.views import VIEWS
from inferlens.views.chart import Chart
from inferlens.views.records import notes_document
from inferlens.views.renderers import render
from inferlens.views.table import FORMATS
from tests.commands import inferlens, output_of, refusal_of
from tests.refusals import refusal
from tests.snapshots import screens_test
from tests.views.samples import (
    UNCHECKED,
    WRONG,
    case,
    cpu_records,
    failure,
    gpu_records,
    io_records,
    record,
    sample_records,
    shown,
)

TERMINALS = {"table, narrow": {"width": 80}, "table, coloured": {"color": True}}
PICTURES = {"chart, svg": Chart}  # PNG and HTML are made of the same chart: test_chart has them
TEXTS = [*FORMATS, *TERMINALS]
MEMBERS = [*TEXTS, *PICTURES]

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>|\n| a | \x1b[31m ]]> =cmd()'\"@everyone"
LONG = case(model="\u202egnol" + "n" * 300, options={"name": "\u05d0" * 300})
NUMBERS = (math.nan, math.inf, 0.01, 0.011, 0.0, 1e-12, 1e12) * 4
SETS = {
    "ok": [record(median=0.01, rate=99.0)], "many": cpu_records(), "mixed batches": gpu_records((1, 8)),
    "machines and models": [*cpu_records(), *gpu_records((1,)), record(case(model="inferlens:resnet34"), rate=50.0)],
    "failed beside ok": [record(), failure(case("openvino"), "timed out", "Took longer than 90 s.", "--timeout 10m")],
    "wrong beside ok": [record(), record(case("openvino"), median=0.001, agreement=WRONG)],
    "unchecked": [record(agreement=None), record(case("openvino"), agreement=UNCHECKED)],
    "host io": io_records(),
    "missing measurements": [record(), record(case("openvino"), median=None, memory=Memory(), phases=())],
    "one sample": [record(samples=(0.01,)), record(case("openvino"), samples=(0.02,))],
    "odd numbers": [record(), record(case("openvino"), samples=NUMBERS, rate=math.inf)],
    "all zero": [record(samples=(0.0,) * 30, rate=0.0), record(case("openvino"), samples=(0.0,) * 30)],
    "no batch": [record(case(batch=None), model=msgspec.structs.replace(record().model, inputs=()))],
    "hostile": [
        record(case(model=HOSTILE), rate=90.0), failure(case("openvino", model=HOSTILE), "failed", HOSTILE, HOSTILE),
        record(case(HOSTILE, model=HOSTILE, options={"a": HOSTILE}), median=0.005, rate=200.0), record(LONG),
    ],
}  # fmt: skip
NOTHING_TO_DRAW = {
    "empty": [], "failed": [failure(case(), "out of memory", "The GPU ran out of memory.", "--batch 1")],
    "wrong": [record(agreement=WRONG)],
}  # fmt: skip


def drawn(name, records, reference=None):
    if name in PICTURES:
        return PICTURES[name](reference=reference).render(records)
    return shown(records, name.partition(",")[0], reference, **TERMINALS.get(name, {}))


@pytest.fixture(params=MEMBERS)
def name(request):
    return request.param


def test_every_view_is_under_test():
    assert {name.partition(",")[0] for name in PICTURES} == set(VIEWS.names())
    assert all(VIEWS.get(name).name == name and VIEWS.get(name).summary for name in VIEWS.names())


@pytest.mark.parametrize("records", SETS.values(), ids=SETS)
def test_renders(name, records):
    assert drawn(name, records)


@pytest.mark.parametrize("records", NOTHING_TO_DRAW.values(), ids=NOTHING_TO_DRAW)
def test_without_a_right_answer_there_is_text_but_no_chart(name, records):
    assert drawn(name, records) if name in TEXTS else refusal("nothing to draw", drawn, name, records)


# ``inferlens show --view notes``: a screen of them, all case by case, as data; and the lines under a table.


test_screen = screens_test("notes", {
    "three": lambda: render(notes_document(three()), width=100),
    "all cases": lambda: render(notes_document(many(), all_cases=True), width=100),
    "none": lambda: render(notes_document([record()])),
})  # fmt: skip


def three() -> list[Record]:
    exported = Warning("export-fallback", "The exporter failed.", "Nothing.")
    few = record(case("torchscript"), samples=(0.01, 0.0101, 0.0099, 0.0098, 0.0102, 0.01, 0.01))
    warned = record(samples=(0.01, 0.0101, 0.0099) * 4, warnings=(exported,))
    return [warned, few, record(case("onnxruntime:cpu"), agreement=WRONG)]


def many() -> list[Record]:
    text = "The {} of it is wrong " + "in words " * 9
    warned = [Warning(f"code-{letter}", text.format(letter), "Mend it.") for letter in "abcdefghijkl"]
    return [record(case(f"backend{place}"), warnings=(warning,)) for place, warning in enumerate(warned)]


@pytest.mark.parametrize("records", [three(), many(), sample_records()], ids=["three", "many", "samples"])
def test_it_fits_on_a_screen_and_says_how_many_more(records):
    lines = render(notes_document(records, paths="there"), width=100).splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 100) == (True, True)
    shown = sum("→" in line for line in lines)
    more = [int(line.split()[0]) for line in lines if line.endswith("more: inferlens show there --view notes --all")]
    assert bool(more) == (shown < len(records) == 12)


def test_the_first_demo_says_nothing_against_itself_and_a_failed_case_has_its_log(tmp_path, monkeypatch):
    def results(*words: str) -> str:
        return output_of("show", "results", *words, cwd=tmp_path)

    monkeypatch.delenv("OMP_NUM_THREADS")
    inferlens("bench", "fake:demo", "--backend", "all", "--batch", "1,8", "--iterations", "50", "--quick", cwd=tmp_path)
    assert results("--view", "notes") == "fake:demo, 6 cases. Notes: none.\n"
    inferlens("bench", "fake:demo", "--backend", "fake:fast", "--option", "fake.trouble=raise", cwd=tmp_path)
    hint = "→ inferlens show --log 'fake:fast fp32 batch 1 cpu trouble=raise' results"
    assert hint in " ".join(results("--view", "notes").split())
    done = inferlens("show", "results", "--log", "fake:fast trouble=raise", cwd=tmp_path)
    assert done.stdout.rstrip().endswith("RuntimeError: this backend was told to fail")
    assert (done.returncode, "failed" in done.stderr) == (0, True)
    assert "inferlens show results --log 'fake:fast" in results()
    results("--log", "fake:fast trouble=raise", "-o", "log.txt")
    assert (tmp_path / "log.txt").read_text(encoding="utf-8") == done.stdout
    refusal_of("show", "results", "--log", "fake:steady", cwd=tmp_path)


@pytest.mark.parametrize("name", TEXTS)
def test_failures_are_rows_with_their_reason(name):
    text = re.sub(r"\s+", " ", drawn(name, SETS["failed beside ok"]).replace("\\", ""))
    for words in ("timed out", "Took longer than 90 s.", "--timeout 10m"):
        assert words in text
