from __future__ import annotations

import re

from inferlens.views.chart import Chart, colours_of_ways, labels
from inferlens.views.picture import colours_of, shapes_of
from inferlens.views.rows import rows

from .samples import case, cpu_records, gpu_records, record, series


def texts(records) -> str:
    drawn = re.findall(r"<text[^>]*>(.*?)</text>", Chart().render(records), re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", text) for text in drawn)


def test_every_value_and_name_is_written():
    drawn = texts(cpu_records())
    for row in rows(cpu_records()):
        if row.ranked:
            assert row.name in drawn
    for text in ("median latency (ms)", "throughput (items per second)", "7.39", "136", "(tied)", "(reference)"):
        assert text in drawn
    assert "(fastest)" in texts(gpu_records((8,)))


def test_what_is_not_drawn_is_named_with_its_reason():
    drawn = texts(cpu_records())
    assert "Not drawn: torchscript:script fp32 (wrong outputs), openvino bf16 (crashed)" in " ".join(drawn.split())
    assert "Whiskers: 5th to 95th percentile" in drawn


def test_many_lines_are_drawn_apart_by_precision_and_look_the_same_in_each():
    many = [
        record(case(f"backend{number}", precision=precision, batch=batch), samples=series(0.01 * (number + 1)))
        for number in range(6)
        for precision in ("fp32", "fp16")
        for batch in (1, 8)
    ]
    assert texts(many[:20]).count("batch size (log scale)") == 1  # latency alone was measured
    assert texts(many).count("batch size (log scale)") == 2
    names, colours, shapes = colours_of_ways(rows(many))
    assert len(names) == 12
    assert colours[::2] == colours[1::2]
    assert shapes[::2] == shapes[1::2]
    assert len(set(zip(colours, shapes, strict=True))) == 6


def test_rows_that_tie_are_said_to():
    near = [record(case(name), samples=series(0.01, spread=0.1)) for name in ("pytorch", "openvino")]
    assert labels(rows(near)) == ["pytorch fp32 (reference, tied)", "openvino fp32 (tied)"]


def test_no_two_of_sixty_four_series_look_alike_nor_share_twelve_a_colour():
    assert len(set(colours_of(12))) == 12
    assert len(set(zip(colours_of(64), shapes_of(64), strict=True))) == 64
