from __future__ import annotations

import pytest

from inferlens import units
from inferlens.errors import InferlensError


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.02, "2 %"), (0.005, "0.5 %"), (0.95, "95 %"), (0.99583, "99.6 %"), (1.0, "100 %"), (-0.123, "12.3 %"),
     (0.0, "0 %"), (10.0, "1,000 %"), (1.2, "120 %")],
)  # fmt: skip
def test_percent(share, text):
    assert units.percent(share) == text


@pytest.mark.parametrize(
    ("relative", "text"),
    [(0.0302, "+3.02 %"), (-0.123, "-12.3 %"), (0.0, "0.00 %"), (-1e-7, "0.00 %"), (0.09999, "+10.0 %"), (None, "–"),
     (1.5, "+150 %"), (99.0, "+9,900 %"), (1e130, "+1.0e+132 %")],
)  # fmt: skip
def test_change(relative, text):
    assert units.change(relative) == text


def test_change_range():
    assert units.change_range(-0.004, 0.0141) == "-0.40 to +1.41 %"
    assert units.change_range(0.0991, 0.151) == "+9.9 to +15.1 %"
    assert units.change_range(1.5001, 1.5002) == "+150.0 to +150.0 %"
    assert units.change_range(0.0, 0.0) == "0.00 to 0.00 %"
    assert units.change_range(None, 1.0) == "–"


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("0.02", 0.02), (" .5 % ", 0.005), ("150%", 1.5), ("0", 0)])
def test_parse_share(text, share):
    assert units.parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["2", "95", "", "%", "-1%", "nan", "inf", "1e-3", "two", "1" * 5000, "2%%"])
def test_what_is_no_share(text):
    with pytest.raises(InferlensError, match="no share"):
        units.parse_share(text)
