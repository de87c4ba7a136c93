"""Each note that follows from a record: where it is said, and where it must not be; and the page of all codes."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import inferlens
from inferlens.analysis import interference, measures, notes
from inferlens.analysis.notes import DIAGNOSTIC_NOTES, LEVEL_BY_CODE, LEVELS, case_notes, note
from inferlens.analysis.samples import CaseRuns
from inferlens.record import machine
from inferlens.record.machine import Marks
from inferlens.record.record import EMPTY_KERNEL, IN_TURNS, NEIGHBOUR_EFFECT, Accuracy, Measurement, Record, Warning
from inferlens.spec.case import Budget
from inferlens.stats import samples as host_bound
from inferlens.stats import steady
from inferlens.stats import steady as diagnostics
from tests.stats.series import autoregressive
from tests.views.samples import UNCHECKED, WRONG, case, failure, in_turns, record

ROOT = Path(inferlens.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "warnings.md").read_text(encoding="utf-8")
AT = np.arange(300) / 300
FIXED = Budget(iterations=300)


def noise(seed: int, size: float = 0.02) -> Any:
    return size * np.random.default_rng(seed).standard_normal(300)


def of(samples: Any, budget: Budget = FIXED, **fields: Any) -> Record:
    return record(samples=tuple(float(sample) * 1e-2 for sample in samples), budget=budget, **fields)


def measured(record: Record, metric: Any, samples: Any, **fields: Any) -> Record:
    """The record with another metric."""
    more = Measurement(metric=metric, unit="s", clock="a clock", samples=tuple(map(float, samples)))
    return replace(record, measurements=(more, *record.measurements), **fields)


def said(*records: Record, **fields: Any) -> list[tuple[str, str]]:
    return [(item.code, item.message) for item in case_notes(CaseRuns(records, **fields))]


def codes(*records: Record) -> list[str]:
    return [code for code, _ in said(*records)]


def timed(latency: float = 10.0, facts: Any = None, **metrics: float) -> Record:
    """A case on a GPU; times in milliseconds, of its metrics by the first word of their names."""
    record = of(latency / 10 * (1 + noise(6)), case=case(device="cuda"), facts=facts or {})
    for name, value in metrics.items():
        record = measured(record, f"{name} time", (value * 1e-3,) * 9)
    return record


def with_turns(*speeds: float) -> Record:
    """A process that took turns, of thirty calls each, with another one."""
    return in_turns(*[tuple(map(float, 1e-2 * speed * (1 + noise(6)[:30]))) for speed in speeds])


def marks(kind: Any, disturbed: int = 0, left_out: bool = False) -> Marks:
    places = tuple(range(disturbed))
    return Marks(count=300, disturbed=places, discarded=places if left_out else (), touched={kind: disturbed or 7})


FIT = of(1 + noise(6))


def answered(hits: int, count: int, commonest: float) -> Record:
    """A case and its reference in fp32, which both are right for so many samples."""
    values = (1.0,) * hits + (0.0,) * (count - hits)
    known = {"values": values, "reference_values": values, "commonest": commonest}
    return replace(FIT, accuracy=Accuracy(data="photos", metric="top-1", count=count, reference="fp32", **known))


def beside_workers(ratio: float) -> Record:
    """A case that took ``ratio`` as long beside another worker as alone."""
    return replace(FIT, facts={NEIGHBOUR_EFFECT: {"others": 1, "ratio": ratio}})


RISING = 1 + AT + noise(1)


def quantized(calibrated: bool) -> Record:
    """A case in int8 that was asked for with --calibration random."""
    facts = {"quantized_share": 1.0, "calibrated": calibrated}
    return replace(FIT, case=replace(FIT.case, precision="int8", calibration="random"), facts=facts)


@pytest.mark.parametrize(("code", "record"), [
    ("few-samples", of(1 + noise(1)[:19])), ("unsteady", of(1 + 0.2 * AT + noise(2))),
    ("unsteady", of(1 + 0.1 * np.sin(15 * AT) + noise(3))), ("unsteady", of(1 + 0.2 * (AT > 0.8) + noise(4))),
    ("two-modes", of(1 + 0.2 * (np.random.default_rng(5).random(300) < 0.4) + noise(5))),
    ("not-finite", of(np.where(AT == 0.01, np.nan, np.where(AT == 0.5, -1.0, 1 + noise(6))))),
    ("uneven-throughput", measured(FIT, "throughput", [300.0, 100] * 5)),
    ("uneven-throughput", measured(FIT, "throughput", [100.0, 200, 150])),
    ("slow-throughput", measured(FIT, "throughput", [79.0] * 10)),
    ("not-reached", of(1 + noise(6, 0.2), Budget(half_width=0.03))), ("host-bound", timed(enqueue=9.2, GPU=9.0)),
    ("copy-bound", timed(enqueue=9.2, GPU=9.0, H2D=3.0, D2H=1.6)),
    ("gpu-floor", timed(latency=0.2, GPU=0.1, facts={EMPTY_KERNEL: {"gpu_seconds": 6e-6}})),
    ("busy", replace(FIT, marks=marks("steal", disturbed=250))),
    ("busy", replace(FIT, window_marks=marks("steal", disturbed=250))),
    ("disturbed", replace(FIT, marks=marks("throttled", disturbed=250))),
    ("workers-disturb", beside_workers(1.35)), ("workers-disturb", beside_workers(0.9)),
    ("power-cap", replace(FIT, marks=marks("power cap"))), ("cpu-quota", replace(FIT, marks=marks("cpu quota"))),
    ("at-chance", answered(0, 200, 1 / 200)),  # of a thousand classes, in another order
    ("at-chance", answered(387, 3925, 0.104)),  # of ten of the thousand, of which the first has its number
    ("at-chance", answered(10, 100, 0.1)),  # random weights, of ten classes
    ("at-chance", answered(2, 100, 0.5)),  # two classes the other way round
    ("random-calibration", quantized(True)),
])  # fmt: skip
def test_what_is_warned_of(code, record):
    (note,) = [item for item in case_notes(CaseRuns((record,))) if item.code == code]
    assert note.level == LEVEL_BY_CODE[code]
    assert len(note.message.split()) <= 20, "one sentence, short enough for a screen"
    assert note.hint


@pytest.mark.parametrize("record", [
    FIT,
    of(1 + 0.3 * (AT < 0.2) + noise(7)),  # its beginning is left out
    of(np.where(np.arange(300) % 40 == 7, 2.0, 1 + noise(6))),  # p95 and p99 show outliers
    measured(FIT, "throughput", [100.0, 101, 99, 100, 102, 98, 100, 101, 99, 100]),
    measured(FIT, "throughput", [-5.0, 100, 100]), measured(FIT, "throughput", [81.0] * 10),
    measured(FIT, "throughput", [400.0] * 10),
    of([1.0] * 100),  # a clock that is told what to say, as the fake backend's
    of(1 + 0.05 * autoregressive(1, 1, 200, 0.9)[0]), of(1 + 0.3 * (AT < 0.4) + noise(7)),
    of(1 + noise(6, 0.2), Budget()),  # nobody asked for how narrow it is to be
    replace(FIT, marks=marks("throttled", disturbed=50, left_out=True)),
    of(1 + noise(6, 0.2), Budget(half_width=0.031)), of(1 + noise(6, 0.2), Budget(iterations=300)),
    of(1 + noise(6, 0.2), Budget(seconds=3.0)), measured(FIT, "warm-up", RISING), timed(enqueue=8.8, GPU=9.0),
    timed(enqueue=1.0, GPU=9.0, H2D=3.0, D2H=1.4),
    timed(latency=0.2, GPU=0.1, facts={EMPTY_KERNEL: {"gpu_seconds": 4e-6}}),
    timed(latency=0.2, GPU=0.1, facts={EMPTY_KERNEL: {"gpu_seconds": "much"}, IN_TURNS: 7}),
    replace(FIT, marks=Marks(count=300)), answered(1, 4, 0.25),
    answered(0, 15, 1 / 15),  # too few to tell
    answered(60, 2000, 0.001),  # poor, and no chance
    answered(94, 100, 0.95),  # one class is nearly all of the data
    answered(40, 100, 0.5),  # two hard classes among a thousand
    quantized(False),  # ranges are found in every call, or were there already
    with_turns(1, 1, 1, 1.01, 1.6, 2, 1.7, 1.8, 1.6),  # of which the median is of the first three
    measured(with_turns(1, 1, 1, 1, 1, 1), "throughput", [101.0, 40.0, 60.0, 100.0, 50.0, 70.0]),
])  # fmt: skip
def test_what_is_not_warned_of(record):
    assert codes(record) == []


def test_processes_that_failed_and_runs_that_were_cut_short():
    fell = failure(case(), "crashed", "killed by SIGSEGV")
    assert said(FIT, fell, fell) == [("repeat-failed", "2 of 3 processes failed: killed by SIGSEGV.")]
    planned = replace(FIT, repeats=5)
    assert said(planned, planned) == [("cut-short", "The run was cut short before all of its processes were measured.")]
    assert [code for code, _ in said(FIT, later=(planned,))] == ["cut-short"]
    assert codes(*[planned] * 5) == []


def test_how_a_case_ended():
    log = "inferlens show --log 'pytorch fp32 batch 1 cpu' RESULTS"
    for case_record, code, level, hint in (
        (failure(case(), "crashed", "killed by SIGSEGV"), "did-not-run", "changes", log),
        (failure(case(), "unsupported", "no GPU", hint="a GPU"), "unsupported", "know", "a GPU"),
        (replace(FIT, agreement=WRONG), "wrong-outputs", "changes", None),
        (replace(FIT, agreement=None), "unchecked", "weakens", None),
        (replace(FIT, agreement=UNCHECKED), "unchecked", "weakens", None),
    ):
        (made,) = case_notes(CaseRuns((case_record,)))
        assert (made.code, made.level, hint or made.hint) == (code, level, made.hint)
        assert code != "did-not-run" or made.message == "Killed by SIGSEGV."


def test_what_has_the_same_cause_is_said_once():
    uneven = measured(FIT, "throughput", [70.0, 90, 40])
    assert codes(uneven) == ["slow-throughput"]
    assert codes(replace(uneven, marks=marks("steal", disturbed=250))) == ["busy"]


def test_one_odd_process_does_not_speak_for_the_case():
    odd = of(1 + 0.2 * AT + noise(2))
    assert [codes(*records) for records in ((odd, FIT), (odd, FIT, FIT))] == [["unsteady"], []]


def test_the_time_without_other_workers_is_of_one_process():
    message = "It took 1.01x as long beside 1 other worker as alone."
    assert said(beside_workers(1.01), FIT, FIT) == [("workers-apart", message)]


def test_equal_warnings_of_several_processes_are_said_once():
    one, two = (Warning("its-own", f"The option {name} does nothing.", "Leave it out.") for name in "ab")
    few = []
    for seed, count in ((1, 12), (2, 15)):
        missed = Warning("not-reached", f"The time was up after {count} of 2,000 samples.", "A longer --max-time.")
        few.append(of(1 + noise(seed)[:count], warnings=(one, two, missed)))
    notes = case_notes(CaseRuns(tuple(few)))
    kept = [note(warning.code, warning.message, warning.advice) for warning in (one, two, few[0].warnings[2])]
    assert list(notes[:3]) == kept
    assert kept[0].level == "weakens", "of a backend that nothing is known of"
    assert [item.code for item in notes[3:]] == ["few-samples"]
    assert kept[0] in case_notes(CaseRuns((failure(case(), warnings=(one,)),))), "also if the process failed"


def test_the_page_has_every_code_with_its_level_and_no_other():
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| .+ \| .+ \| .+ \|$", PAGE, re.M)
    assert dict(rows) == LEVEL_BY_CODE
    assert len(rows) == len(LEVEL_BY_CODE)
    assert set(LEVEL_BY_CODE.values()) == set(LEVELS)
    source = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py"))
    made = set(re.findall(r'\b(?:warn|note|Warning)\(\s*"([\w-]+)"', source))
    made |= set(re.findall(r'code="([\w-]+)" if \w+ else "([\w-]+)"', source)[0])
    made |= {row[0] for row in (*DIAGNOSTIC_NOTES.values(), *interference.OWN_EFFECTS.values())}
    made |= {rule.code for rule in notes.RECORD_RULES if rule.code} | {row[1] for row in notes.BEHAVIOR_NOTES}
    assert made <= set(LEVEL_BY_CODE)
    elsewhere = source.replace((ROOT / "analysis" / "notes.py").read_text(encoding="utf-8"), "")
    assert [code for code in set(LEVEL_BY_CODE) - made if f'"{code}"' not in elsewhere] == []
    quiet = {"warm-up", "quantised", "few-independent-samples"}
    assert set(diagnostics.CODES) - set(DIAGNOSTIC_NOTES) == quiet


def test_the_page_has_the_numbers_of_the_code():
    rows = dict(re.findall(r"^\| `([\w-]+)` \| \w+ \| .+? \| (.+?) \|", PAGE, re.M))
    numbers = {
        "few-samples": f"fewer than {diagnostics.LEAST_FOR_DIAGNOSTICS} samples", "unsteady": f"{steady.TOLERANCE:.1%}",
        "two-modes": f"{diagnostics.LEAST_DISTANCE:.0%}", "slow-throughput": f"{notes.SLOW_RATE:.0%}",
        "host-bound": f"{host_bound.ENQUEUEING:.0%}", "gpu-floor": f"{notes.GPU_FLOOR:.0%}",
        "copy-bound": f"{measures.COPY_BOUND:.0%}", "at-chance": f"{notes.AT_CHANCE:.0%}",
        "disturbed": f"{machine.DISCARD_HOT:.0%}", "busy": f"{machine.DISCARD_AT_MOST:.0%}",
    }  # fmt: skip
    assert [code for code, number in numbers.items() if number.replace("%", " %") not in rows[code]] == []
