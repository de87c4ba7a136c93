"""Each warning that follows from a record: where it is told, and where it must not be; the list, the page, the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import inferlens
from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.rule import rules_of
from inferlens.analysis.findings.rules.records import OF_THE_MACHINE, OF_THE_SERIES, bound_by
from inferlens.analysis.findings.warnings import CODES, OF_THE_RECORD, warnings_of
from inferlens.analysis.interference import mark
from inferlens.analysis.interference.samples import CaseRuns
from inferlens.backends.base import Preparation
from inferlens.record.machine import Marks, Span
from inferlens.record.record import EMPTY_KERNEL, IN_TURNS, Measurement, Record, Warning
from inferlens.spec.case import Budget
from inferlens.stats import diagnostics, host_bound
from tests.stats.series import autoregressive
from tests.views.samples import case, failure, record

ROOT = Path(inferlens.__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "warnings.md"
AT = np.arange(300) / 300
FIXED = Budget(iterations=300)
ON_GPU = case(device="cuda")


def noise(seed: int, size: float = 0.02) -> Any:
    return size * np.random.default_rng(seed).standard_normal(300)


def of(samples: Any, budget: Budget = FIXED, **fields: Any) -> Record:
    return record(samples=tuple(float(each) * 1e-2 for each in samples), budget=budget, **fields)


def codes(*records: Record) -> list[str]:
    return [warning.code for warning in warnings_of(CaseRuns(records))]


# Of the samples


@pytest.mark.parametrize(
    ("code", "samples"),
    [
        ("few-samples", 1 + noise(1)[:19]),
        ("few-independent-samples", 1 + 0.05 * autoregressive(1, 1, 200, 0.9)[0]),
        ("drifting", 1 + 0.2 * AT + noise(2)),
        ("cycling", 1 + 0.1 * np.sin(15 * AT) + noise(3)),
        ("never-steady", 1 + 0.2 * (AT > 0.8) + noise(4)),
        ("two-modes", 1 + 0.2 * (np.random.default_rng(5).random(300) < 0.4) + noise(5)),
        ("quantised", [1.0] * 100),
    ],
)
def test_a_series_that_is_unfit_is_told(code: str, samples: Any) -> None:
    (warning,) = [each for each in warnings_of(CaseRuns((of(samples, Budget()),))) if each.code == code]
    assert warning.advice
    assert code not in codes(of(1 + noise(6)))


@pytest.mark.parametrize(
    ("budget", "advice"),
    [
        (Budget(), "A longer --max-time."),
        (Budget(stop="plateau"), "A longer --max-time."),
        (Budget(iterations=10), "More --iterations."),
        (Budget(seconds=0.1), "A longer --seconds."),
    ],
)
def test_the_advice_is_the_word_that_makes_the_series_longer(budget: Budget, advice: str) -> None:
    assert warnings_of(CaseRuns((of(1 + noise(1)[:10], budget),)))[0].advice == advice


def test_a_long_beginning_that_was_left_out_is_told() -> None:
    (warning,) = warnings_of(CaseRuns((of(1 + 0.3 * (AT < 0.4) + noise(7)),)))
    assert warning.code == "beginning-left-out"
    assert warning.message == "The first 120 of 300 samples were not steady yet, and are left out."


def test_samples_that_are_no_numbers_are_told() -> None:
    odd = 1 + noise(6)
    odd[[3, 100, 200]] = np.nan, -1.0, np.inf
    assert [(each.code, each.message) for each in warnings_of(CaseRuns((of(odd),)))] == [
        ("not-finite", "3 samples are negative or not finite, and left out.")
    ]


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        ([100.0, 101, 99, 100, 102, 98, 100, 101, 99, 100], None),
        ([300.0, 100] * 5, "The median of the throughput windows is known to 50 % only."),
        ([100.0, 200, 150], "Throughput windows differ from their median by 33.3 %."),
        ([-5.0, 100, 100], None),
        ([100.0, 104, 102], None),
        ([], None),
    ],
)
def test_throughput_that_is_not_known_well_is_told(windows: list[float], said: str | None) -> None:
    one = of(1 + noise(6))
    rates = Measurement(metric="throughput", unit="calls/s", clock="host", samples=tuple(windows))
    found = warnings_of(CaseRuns((msgspec.structs.replace(one, measurements=(*one.measurements, rates)),)))
    assert [each.message for each in found] == ([said] if said else [])


@pytest.mark.parametrize("code", ["few-independent-samples", "drifting", "cycling", "never-steady"])
def test_who_asked_for_several_processes_is_not_told_to_ask_for_them(code: str) -> None:
    samples = {
        "few-independent-samples": 1 + 0.05 * autoregressive(1, 1, 200, 0.9)[0],
        "drifting": 1 + 0.2 * AT + noise(2),
        "cycling": 1 + 0.1 * np.sin(15 * AT) + noise(3),
        "never-steady": 1 + 0.2 * (AT > 0.8) + noise(4),
    }[code]
    said = {
        repeats: next(
            each.advice for each in warnings_of(CaseRuns((of(samples, repeats=repeats),))) if each.code == code
        )
        for repeats in (1, 5)
    }
    assert "--repeats 5" in said[1]
    assert said[5]
    assert "--repeats" not in said[5]


@pytest.mark.parametrize(
    "samples",
    [
        1 + noise(6),
        1 + 0.3 * (AT < 0.2) + noise(7),  # its beginning is left out
        np.where(np.arange(300) % 40 == 7, 2.0, 1 + noise(6)),  # outliers: p95 and p99 show them
    ],
)
def test_a_series_that_is_fit_has_no_warning(samples: Any) -> None:
    assert codes(of(samples)) == []


def test_a_case_that_did_not_run_has_none() -> None:
    assert codes(failure(case())) == []


@pytest.mark.parametrize(
    ("spread", "budget", "message"),
    [
        (0.2, Budget(), "The median is known to 3.05 % only; 1 % was wanted."),
        (0.2, Budget(half_width=0.03), "The median is known to 3.05 % only; 3 % was wanted."),
        (0.2, Budget(half_width=0.031), None),
        (0.002, Budget(), None),
        (0.2, Budget(iterations=300), None),
        (0.2, Budget(seconds=3.0), None),
        (0.2, Budget(stop="plateau"), None),
    ],
)
def test_a_median_that_is_not_known_as_well_as_was_asked(spread: float, budget: Budget, message: str | None) -> None:
    found = warnings_of(CaseRuns((of(1 + noise(6, spread), budget),)))
    assert [warning.message for warning in found] == ([message] if message else [])
    assert all(warning.code == "not-narrow-enough" for warning in found)


def warmed(calls: Any, **budget: Any) -> Record:
    made = of(1 + noise(6), Budget(iterations=300, **budget))
    before = Measurement(metric="warm-up", unit="s", clock="a clock", samples=tuple(float(each) for each in calls))
    return msgspec.structs.replace(made, measurements=(before, *made.measurements))


def test_a_warm_up_that_was_not_steady() -> None:
    rising, level = 1 + AT + noise(1), 1 + noise(1)
    assert codes(warmed(rising)) == ["unsteady-warm-up"]
    assert codes(warmed(level)) == []
    assert codes(warmed(rising[:29])) == []  # too few to tell
    assert codes(warmed(rising, warmup=300)) == []  # it was asked for


def test_a_process_that_failed() -> None:
    fell = failure(case(), "crashed", "killed by SIGSEGV")
    (warning,) = warnings_of(CaseRuns((of(1 + noise(6)), fell, fell)))
    assert (warning.code, warning.message) == ("repeat-failed", "2 of 3 processes failed: killed by SIGSEGV.")
    assert codes(fell, fell) == []


def test_a_run_that_was_cut_short() -> None:
    planned = of(1 + noise(6), repeats=5)
    (warning,) = warnings_of(CaseRuns((planned, planned)))
    assert (warning.code, warning.message) == ("cut-short", "The run was cut short: 2 of 5 processes were measured.")
    (warning,) = warnings_of(CaseRuns((of(1 + noise(6)),), later=(planned,)))
    assert warning.message.startswith("A later run was cut short, 1 of 5 processes")
    assert codes(*[planned] * 5) == []


# Of what a call waits for


def timed(latency: float = 10.0, **metrics: float) -> Record:
    """A case on a GPU; times in milliseconds, of its metrics by the first word of their names."""
    names = {"enqueue": "enqueue time", "GPU": "GPU time", "H2D": "H2D time", "D2H": "D2H time"}
    made = of(latency / 10 * (1 + noise(6)), case=ON_GPU)
    more = tuple(
        Measurement(metric=names[name], unit="s", clock="a clock", samples=(value * 1e-3,) * 9)  # type: ignore[arg-type]
        for name, value in metrics.items()
    )
    return msgspec.structs.replace(made, measurements=(*made.measurements, *more))


@pytest.mark.parametrize(
    ("metrics", "bound"),
    [
        ({"enqueue": 9.2, "GPU": 9.0}, "host"),
        ({"enqueue": 8.8, "GPU": 9.0}, "GPU"),
        ({"enqueue": 9.2}, ""),
        ({"GPU": 9.0}, ""),
        ({"enqueue": 1.0, "GPU": 9.0, "H2D": 3.0, "D2H": 1.5}, "copies"),
        ({"enqueue": 9.2, "GPU": 9.0, "H2D": 3.0, "D2H": 1.6}, "copies"),
        ({"enqueue": 1.0, "GPU": 9.0, "H2D": 3.0, "D2H": 1.4}, "GPU"),
        ({"enqueue": 1.0, "GPU": 9.0, "H2D": 8.0}, "GPU"),
    ],
)
def test_what_a_call_waits_for(metrics: dict[str, float], bound: str) -> None:
    made = timed(**metrics)
    assert bound_by(made) == bound
    told = {"host": ["host-bound"], "copies": ["copy-bound"]}
    assert codes(made) == told.get(bound, [])


@pytest.mark.parametrize(("fact", "told"), [("fake fp32", ["in-turns"]), (7, []), (None, [])])
def test_a_case_that_took_turns_says_with_whom(fact: Any, told: list[str]) -> None:
    made = of(1 + noise(6), facts={IN_TURNS: fact})
    assert codes(made) == told
    if told:
        assert "in turns with fake fp32:" in warnings_of(CaseRuns((made,)))[0].message


@pytest.mark.parametrize(
    ("fact", "told"),
    [
        ({"gpu_seconds": 4e-6}, []),
        ({"gpu_seconds": 6e-6}, ["gpu-floor"]),
        ({"gpu_seconds": "much"}, []),
        ("nonsense", []),
        (None, []),
    ],
)
def test_a_short_gpu_time_says_how_much_of_it_is_launch_and_events(fact: Any, told: list[str]) -> None:
    made = msgspec.structs.replace(timed(latency=0.2, GPU=0.1), facts={EMPTY_KERNEL: fact})
    assert codes(made) == told
    if told:
        assert "Of 100 µs of GPU time 6.00 µs are launch and timing" in warnings_of(CaseRuns((made,)))[0].message


# Of the machine


def marks(*kinds: str, disturbed: int = 0, left_out: bool = False, repeat: bool = False, again: bool = False) -> Marks:
    places = tuple(range(disturbed))
    return Marks(
        count=300,
        disturbed=places,
        discarded=places if left_out else (),
        touched=dict.fromkeys(kinds, disturbed or 7),
        spans=tuple(Span(0.0, 1.0, kind, f"seen: {kind}") for kind in kinds),  # type: ignore[arg-type]
        repeat=repeat,
        why="too many, also when the case was measured again; all are kept" if again else "",
    )


@pytest.mark.parametrize(
    ("found", "code", "message"),
    [
        (
            marks("steal", disturbed=250, again=True),
            "disturbed",
            "250 of 300 samples were disturbed, by steal (seen: steal); all are kept, measuring again was no better.",
        ),
        (
            marks("steal", disturbed=250, repeat=True),
            "disturbed",
            "250 of 300 samples were disturbed, by steal (seen: steal); all are kept.",
        ),
        (
            marks("throttled", "steal", disturbed=50, left_out=True),
            "samples-left-out",
            "50 of 300 samples were disturbed, by throttled (seen: throttled), steal (seen: steal); they are left out.",
        ),
        (marks("power cap"), "power-cap", "7 of 300 samples were taken at the GPU's power limit."),
        (
            marks("cpu quota"),
            "cpu-quota",
            "7 of 300 samples were taken while the CPU quota of the control group was used up.",
        ),
    ],
)
def test_what_the_machine_did(found: Marks, code: str, message: str) -> None:
    for field in ("marks", "window_marks"):
        (warning,) = warnings_of(CaseRuns((of(1 + noise(6), **{field: found}),)))
        assert (warning.code, warning.message) == (code, message)
        assert warning.advice
    assert codes(of(1 + noise(6), marks=Marks(count=300))) == []


# Several processes


def test_equal_warnings_of_several_processes_are_said_once() -> None:
    said = (Warning("no-engines", "There is no engine.", "inferlens partition tells why."),)
    few = [of(1 + noise(seed)[:count], warnings=said) for seed, count in ((1, 12), (2, 15))]
    found = warnings_of(CaseRuns(tuple(few)))
    assert [warning.code for warning in found] == ["no-engines", "few-samples"]
    assert "12 samples" in found[1].message
    disturbed = [of(1 + noise(6), marks=marks("steal", disturbed=count)) for count in (250, 251)]
    assert codes(*disturbed) == ["disturbed"]
    capped = msgspec.structs.replace(marks("power cap"), touched={"power cap": 8})
    assert codes(of(1 + noise(6), marks=marks("power cap")), of(1 + noise(6), marks=capped)) == ["power-cap"]


def test_what_was_not_reached_is_said_once_of_several_processes_with_the_word_that_helps() -> None:
    few = [
        of(
            1 + noise(seed)[:count],
            Budget(iterations=2000, max_time=0.3),
            warnings=(
                Warning("not-reached", f"The time was up after {count} of 2,000 samples.", "A longer --max-time."),
            ),
        )
        for seed, count in ((1, 12), (2, 15))
    ]
    assert [(each.code, each.advice) for each in warnings_of(CaseRuns(tuple(few)))] == [
        ("not-reached", "A longer --max-time."),
        ("few-samples", "A longer --max-time."),
    ]


def test_what_the_process_said_is_said_even_if_it_failed() -> None:
    said = [Warning("no-effect", f"The option {name} does nothing on cpu.", "Leave it out.") for name in "ab"]
    both = CaseRuns((of(1 + noise(6), warnings=tuple(said)), of(1 + noise(6), warnings=(said[0],))))
    assert warnings_of(both) == (*said,)
    assert warnings_of(CaseRuns((failure(case(), warnings=(said[0],)),))) == (said[0],)


# The list, the source and the page


def warned() -> Iterator[tuple[str, list[str | None]]]:
    """The file, and the constant arguments, of each call that warns outside of the rules."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(tree):
            name = ast.unparse(call.func).rpartition(".")[2] if isinstance(call, ast.Call) else ""
            if name not in ("warn", "Warning") or not isinstance(call, ast.Call) or not call.args:
                continue
            (first, *_), arguments = call.args, list(call.args)
            if isinstance(first, ast.Starred) and isinstance(first.value, ast.Name):
                arguments = list(constants[first.value.id].elts)  # type: ignore[attr-defined]
            yield path.name, [each.value if isinstance(each, ast.Constant) else None for each in arguments]


def test_every_code_in_the_source_is_in_the_list_and_the_list_has_no_other() -> None:
    said = {arguments[0] for _, arguments in warned() if arguments[0]} | set(OF_THE_MACHINE)
    said |= {each.code for each in rules_of("record") if each.code} | set(OF_THE_SERIES)
    assert said == set(CODES)
    assert set(diagnostics.CODES) - set(OF_THE_SERIES) == {"warm-up", "outliers"}
    assert len(CODES) == len(set(CODES))
    assert {*OF_THE_MACHINE, *OF_THE_RECORD} <= set(CODES)


def test_every_warning_has_an_advice() -> None:
    assert all(arguments[2] != "" for _, arguments in warned() if len(arguments) > 2)
    assert all(OF_THE_SERIES.values())
    assert all(mark.ADVICE.values())
    assert all(each.hint for each in rules_of("record") if each.code not in ("", "host-bound"))


def test_the_page_has_every_code_and_no_other() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.+) \| (.+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    assert sorted(row[0] for row in rows) == sorted(CODES)


def test_the_page_has_the_numbers_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| .+? \| (.+?) \|", PAGE.read_text(encoding="utf-8"), re.M))
    from inferlens.analysis.interference import spans
    from inferlens.execution.interference import LEAST_WINDOWS
    from inferlens.execution.subprocess import GOODBYE
    from inferlens.stats import modes, steady

    said = {
        "few-samples": f"fewer than {diagnostics.LEAST_SAMPLES} samples",
        "few-independent-samples": f"{diagnostics.LEAST_TIMES} autocorrelation times",
        "drifting": f"{steady.TOLERANCE:.1%}".replace("%", " %"),
        "never-steady": "a third" if steady.LEAST_SHARE == 1 / 3 else "",
        "two-modes": f"{modes.LEAST_DISTANCE:.0%}".replace("%", " %"),
        "quantised": f"{diagnostics.LEAST_STEPS:.0f} steps",
        "not-narrow-enough": f"{Budget().half_width:.0%}".replace("%", " %"),
        "unsteady-warm-up": f"{steady.LEAST_SAMPLES} calls",
        "host-bound": f"{host_bound.ENQUEUEING:.0%}".replace("%", " %"),
        "gpu-floor": f"{thresholds.GPU_FLOOR:.0%}".replace("%", " %"),
        "copy-bound": f"{thresholds.COPY_BOUND:.0%}".replace("%", " %"),
        "disturbed": f"fewer than {mark.LEAST_KEPT} ({LEAST_WINDOWS} windows",
        "samples-left-out": f"{mark.DISCARD_AT_MOST:.0%}".replace("%", " %"),
        "cpu-quota": f"{spans.QUOTA_WAIT:.0%}".replace("%", " %"),
        "bad-exit": f"{GOODBYE:.0f} s",
    }
    assert {code: text in rows[code] for code, text in said.items()} == dict.fromkeys(said, True)


def test_an_unknown_code_of_a_third_partys_backend_is_said_as_it_is() -> None:
    preparation = Preparation(Path(), Path())
    preparation.warn("its-own", "Something.", "Something else.")
    assert warnings_of(CaseRuns((of(1 + noise(6), warnings=tuple(preparation.warnings)),)))[0].code == "its-own"
