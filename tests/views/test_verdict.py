"""What is said of records: the closing sentences, and the notes beneath a table."""

from __future__ import annotations

import math

import pytest

from inferlens.record.record import Environment, Warning
from inferlens.views.rows import rows
from inferlens.views.verdict import verdict

from .samples import CPU, WRONG, case, failure, record, series, shown

WHERE = f"torchvision:resnet18 on {CPU}"
SURE = "One process each, so 51.6 % and less is not told apart; --repeats 5 measures how far runs differ."


def constant(backend: str, seconds: float, count: int = 100, batch: int = 1, **fields):
    return record(case(backend, batch=batch), samples=(seconds,) * count, **fields)


def told(*records, reference=None):
    return verdict(rows(records, reference))


def test_a_clear_winner_and_a_fast_wrong_answer():
    wrong = constant("torchscript:trace", 0.001, agreement=WRONG)
    assert told(constant("pytorch", 0.02), constant("openvino", 0.01), wrong) == [
        f"{WHERE}: openvino fp32 was fastest: 2.00x as fast as pytorch fp32 (95 % interval 2.00 to 2.00), "
        "10.0 ms against 20.0 ms.",
        "Not ranked, because outputs were wrong: torchscript:trace fp32.",
        SURE,
    ]


def test_each_batch_has_its_sentence():
    alike = tuple(0.04 + 1e-5 * math.sin(index / 60) for index in range(400))  # worth a sample or two
    records = [constant("pytorch", 0.02 * b, batch=b) for b in (1, 8)]
    records += [constant("openvino", 0.04, batch=1), record(case("openvino", batch=8), samples=alike)]
    assert told(*records) == [
        f"{WHERE}, at batch 1: pytorch fp32 was fastest: 20.0 ms. Next is openvino fp32, 40.0 ms.",
        f"{WHERE}, at batch 8: openvino fp32 was fastest: 4.00x as fast as pytorch fp32, 40.0 ms against 160 ms.",
        SURE,
    ]


def test_two_that_cannot_be_told_apart():
    other = record(case("openvino"), samples=series(0.01001, 100, 0.1, seed=1))
    found = rows([record(case(), samples=series(0.01, 100, 0.1)), other])
    low = min(found, key=lambda row: row.median or 0)
    assert [row.fastest for row in found] == [True, True]
    assert f"openvino fp32 and pytorch fp32 cannot be told apart. The lowest is {low.name}, " in verdict(found)[0]


def test_none_ran():
    assert told(failure(case()), failure(case("openvino"))) == [f"{WHERE}: no case ran, so nothing is ranked."]
    assert told(constant("pytorch", 0.02, agreement=WRONG)) == [
        f"{WHERE}: no case ran with right outputs, so nothing is ranked.",
        "Not ranked, because outputs were wrong: pytorch fp32.",
    ]
    assert told() == []


def test_machines_are_not_compared():
    elsewhere = constant("openvino", 0.01, environment=Environment(cpu="AMD EPYC 9654"))
    sentences = told(constant("pytorch", 0.02), elsewhere)
    assert sentences[-1] == "Rows of different machines are not compared with each other."


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (("Off by 3.", "Off by 3."), ["¹ Off by 3."]),
        (("1904 are worth 2.", "77 are worth 31.", "1,000 are worth 7.5."), ["¹ 77 to 1904 are worth 2 to 31."]),
        (("fp16 is off by 3.", "fp32 is off by 3."), ["¹ fp16 is off by 3.", "² fp32 is off by 3."]),
        (("Try (a.b=true).", "Try (c:d-e).", "Try (a.b=true)."), ["¹ Try (a.b=true, c:d-e)."]),
        (("{0} of 5e-05.", "{0} of 2e-07."), ["¹ {0} of 2e-07 to 5e-05."]),
    ],
)
def test_notes_that_differ_in_figures_are_one(messages: tuple[str, ...], expected: list[str]) -> None:
    records = [
        record(case(precision=precision), warnings=(Warning("cycling", message),))
        for precision, message in zip(("fp32", "fp16", "bf16"), messages, strict=False)
    ]
    drawn = [line.strip() for line in shown(records).splitlines() if line.startswith(("¹", "²", "³"))]
    assert drawn == expected
