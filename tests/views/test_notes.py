"""Notes beneath a table: the same words are said once, with the figures of all rows that they are about."""

from __future__ import annotations

import pytest

from inferlens.record.record import Warning
from tests.views.samples import case, record, shown


def notes(*messages: str) -> list[str]:
    records = [
        record(case(precision=precision), warnings=(Warning("cycling", message),))
        for precision, message in zip(("fp32", "fp16", "bf16"), messages, strict=False)
    ]
    return [line.strip() for line in shown(records, "markdown").splitlines() if line.startswith(("¹", "²", "³"))]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (("Off by 3.",), ["¹ Off by 3."]),
        (("Off by 3.", "Off by 3."), ["¹ Off by 3."]),
        (("Off by 12.", "Off by 3.", "Off by 7.5."), ["¹ Off by 3 to 12."]),
        (("1904 are worth 2.", "77 are worth 31."), ["¹ 77 to 1904 are worth 2 to 31."]),
        (("fp16 is off by 3.", "fp32 is off by 3."), ["¹ fp16 is off by 3.", "² fp32 is off by 3."]),
        (("Try (a.b=true) or 3.", "Try (a.b=true) or 4."), ["¹ Try (a.b=true) or 3 to 4."]),
        (("Try (a.b=true).", "Try (c:d-e).", "Try (a.b=true)."), ["¹ Try (a.b=true, c:d-e)."]),
        (("Try (as a.b=true).", "Try (as c.d=true)."), ["¹ Try (as a.b=true).", "² Try (as c.d=true)."]),
        (("{0} of 5e-05.", "{0} of 2e-07."), ["¹ (0) of 2e-07 to 5e-05."]),
    ],
)
def test_notes_that_differ_in_figures_are_one(messages: tuple[str, ...], expected: list[str]) -> None:
    assert notes(*messages) == expected
