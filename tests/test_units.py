import math

import pytest

from inferlens import units
from tests.refusals import refusal

TEXTS = {
    units.significant: {
        0: "0", 12.345: "12.3", 1.5: "1.50", 9.996: "10.0", 999.7: "1,000", 12345.6: "12,346", 0.00123: "0.00123",
        -2.5: "-2.50", math.inf: "inf", math.nan: "nan",
    },
    units.duration: {850e-6: "850 µs", 0.0123: "12.3 ms", 4.2: "4.20 s", 42.0: "42 s", 185: "3 min 05 s", None: "–"},
    units.byte_count: {0: "0 B", 512: "512 B", 1.5 * 2**20: "1.50 MiB", 2**50: "1,024 TiB", None: "–"},
    units.milliseconds: {0.0123: "12.3", None: "–"},
    units.latency: {0.0123: "12.3 ms", 4.1e-6: "4.10 µs", 1e-5: "0.0100 ms", None: "–"},
    units.mebibytes: {812 * 2**20: "812", None: "–"},
    units.bare_seconds: {4.3: "4.30", 0.0834: "0.08", 2e-6: "0.00", 312.4: "312", None: "–"},
    units.rate: {81.26: "81.3", None: "–"},
    units.ratio: {1.834: "1.83x", None: "–"},
    units.error_size: {0: "0", 3.2e-7: "3e-07", 0.0123: "0.012", 0.5: "0.50", None: "–"},
    units.percent: {
        0.02: "2 %", 0.005: "0.5 %", 0.95: "95 %", 0.99583: "99.6 %", 1.0: "100 %", -0.123: "12.3 %", 0.0: "0 %",
        10.0: "1,000 %", 1.2: "120 %",
    },
    units.change: {
        0.0302: "+3.02 %", -0.123: "-12.3 %", 0.0: "0.00 %", -1e-7: "0.00 %", 0.09999: "+10.0 %", 1.5: "+150 %",
        99.0: "+9,900 %", 1e130: "+1.0e+132 %", None: "–",
    },
}  # fmt: skip


@pytest.mark.parametrize("form", TEXTS)
def test_numbers_as_text(form):
    assert {value: form(value) for value in TEXTS[form]} == TEXTS[form]


def test_ranges():
    assert units.ratio_range(1.71, 1.95) == "1.71 to 1.95"
    assert units.ratio_range(2.0101, 2.0119) == "2.01 to 2.01"
    assert units.ratio_range(None, 1.0) == "–"
    assert units.change_range(-0.004, 0.0141) == "-0.40 to +1.41 %"
    assert units.change_range(0.0991, 0.151) == "+9.9 to +15.1 %"
    assert units.change_range(1.5001, 1.5002) == "+150.0 to +150.0 %"
    assert units.change_range(0.0, 0.0) == "0.00 to 0.00 %"
    assert units.change_range(None, 1.0) == "–"


def test_a_spread_wider_than_the_value_is_a_word():
    around = [(0.996, 1.003), (1, 1.0001), (0.5, 1.9), (0.1, 5.83), (-3, 1.2), (1, math.inf), (None, 1)]
    assert [units.half_width(1, *each) for each in around] == ["0.4 %", "<0.1 %", "90.0 %", *["unsteady"] * 3, "–"]
    assert [units.half_width(middle, 0, 1) for middle in (None, 0)] == ["–", "–"]
    ends = [(11.9, 12.4), (1, 30), (None, None)]
    assert [units.with_half_width("12", 12, *each) for each in ends] == ["12 ± 3.3 %", "12 unsteady", "12"]


def test_times_to_come_are_no_finer_than_they_are_known():
    texts = {1: "5 s", 42: "40 s", 81: "1 min 20 s", 200: "3 min 20 s", 1000: "17 min", 11_400: "3 h 10 min"}
    assert {seconds: units.about(seconds).removeprefix("about ") for seconds in texts} == texts


def test_words():
    assert units.plural(1, "sample") == "1 sample"
    assert units.plural(1000, "sample") == "1,000 samples"
    assert [units.listing(list(words)) for words in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]


def test_durations_and_shares_are_read():
    texts = {"90": 90, "90s": 90, "1.5m": 90, "200ms": 0.2, " 1 h ": 3600}
    assert [units.parse_duration(text) for text in texts] == pytest.approx(list(texts.values()))
    texts = {"2%": 0.02, "0.02": 0.02, " .5 % ": 0.005, "150%": 1.5, "0": 0}
    assert [units.parse_share(text) for text in texts] == pytest.approx(list(texts.values()))
    for text in ("", "s", "1 day", "-5s", "1.2.3"):
        refusal("is not a duration", units.parse_duration, text)
    for text in ("2", "95", "", "%", "-1%", "nan", "inf", "1e-3", "two", "1" * 5000, "2%%"):
        refusal("is not a percentage", units.parse_share, text)


def test_sizes_energies_rates_and_errors_are_read_and_written():
    assert [units.parse_bytes(text) for text in ("2GiB", "1.5 MiB", "512KiB", "3kB", "7B")] == [
        2 * 2**30, 1.5 * 2**20, 512 * 2**10, 3000, 7,
    ]  # fmt: skip
    assert [units.parse_joules(text) for text in ("2J", "50 mJ", "3µJ", "3uJ")] == pytest.approx([2, 0.05, 3e-6, 3e-6])
    assert [units.parse_rate(text) for text in ("1000", "2.5/s", "1e3 items/s")] == [1000, 2.5, 1000]
    assert [units.parse_error(text) for text in ("1e-2", "1%", "150%", ".5", "0")] == [0.01, 0.01, 1.5, 0.5, 0]
    for text in ("", "2", "2 gib", "GiB", "-1GiB", "nanB", "2GiBs", "1" * 5000 + "B"):
        refusal("is not a valid size of memory", units.parse_bytes, text)
    for text in ("1", "2", "one", "1e-2x", "inf", "-1%"):
        refusal("relative error", units.parse_error, text)
    assert [units.joules(value) for value in (0.0123, 4.2, None)] == ["12.3 mJ", "4.20 J", "–"]
    assert [units.items_per_second(value) for value in (81.26, None)] == ["81.3 items/s", "–"]
