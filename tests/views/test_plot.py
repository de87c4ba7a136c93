from __future__ import annotations

import pytest

from inferlens.cli.plot import plot
from inferlens.errors import InferlensError
from inferlens.record.record import encode

from .samples import cpu_records


@pytest.fixture
def folder(tmp_path):
    for index, record in enumerate(cpu_records()):
        (tmp_path / "records" / str(index)).mkdir(parents=True)
        (tmp_path / "records" / str(index) / "record.json").write_bytes(encode(record))
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
