from __future__ import annotations

import re

import pytest

from inferlens.cli.show import plot
from inferlens.errors import InferlensError
from inferlens.record.record import encode
from inferlens.views.chart import Chart, labels
from inferlens.views.picture import colours_of, shapes_of
from inferlens.views.rows import rows

from .samples import case, cpu_records, gpu_records, record, series


def texts(records) -> str:
    drawn = re.findall(r"<text[^>]*>(.*?)</text>", Chart().render(records), re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", text) for text in drawn)


def test_every_value_and_name_is_written_and_what_is_not_drawn_is_named_with_its_reason():
    drawn = " ".join(texts(cpu_records()).split())
    for row in rows(cpu_records()):
        if row.ranked:
            assert row.name in drawn
    for text in (
        "median latency (ms)", "throughput (items per second)", "7.39", "136", "(tied)", "(reference)",
        "Not drawn: torchscript:script fp32 (wrong outputs), openvino bf16 (crashed)", "Whiskers: 5th to 95th",
    ):  # fmt: skip
        assert text in drawn
    assert "(fastest)" in texts(gpu_records((8,)))
    assert "throughput" in texts([record(median=None, rate=100.0)])


def test_rows_that_tie_are_said_to():
    near = [record(case(name), samples=series(0.01, spread=0.1)) for name in ("pytorch", "openvino")]
    assert labels(rows(near)) == ["pytorch fp32 (reference, tied)", "openvino fp32 (tied)"]


def test_no_two_of_sixty_four_series_look_alike_nor_share_twelve_a_colour():
    assert len(set(colours_of(12))) == 12
    assert len(set(zip(colours_of(64), shapes_of(64), strict=True))) == 64


@pytest.fixture
def folder(tmp_path):
    for index, each in enumerate(cpu_records()):
        (tmp_path / "records" / str(index)).mkdir(parents=True)
        (tmp_path / "records" / str(index) / "record.json").write_bytes(encode(each))
    return tmp_path / "records"


@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<svg"), ("a.PNG", b"\x89PNG"), ("a.html", b"<!DOCTYPE html>")])
def test_the_suffix_decides_the_format(folder, tmp_path, name, start, capsys):
    plot([folder], tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert name in shown.err


@pytest.mark.parametrize("name", ["a.pdf", "a", ".svg"])
def test_an_unknown_suffix_is_refused_and_nothing_written(folder, tmp_path, name):
    with pytest.raises(InferlensError, match="cannot be written as"):
        plot([folder], tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


def test_a_failed_chart_leaves_the_old_file(folder, tmp_path):
    (tmp_path / "a.svg").write_text("old")
    with pytest.raises(InferlensError, match="No case fits"):
        plot([folder], tmp_path / "a.svg", reference="tensorrt")
    assert (tmp_path / "a.svg").read_text() == "old"
