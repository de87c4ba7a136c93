"""The log of a case: which one is meant, and that it is plain text of bounded length."""

import os

import pytest

from inferlens.record.record import encode
from inferlens.record.store import LOG, MOST_LINES, RECORD, find_log, load_records
from tests.refusals import refusal
from tests.views.samples import case, failure, record


def keep(folder, of, log=None):
    folder.mkdir(parents=True)
    (folder / RECORD).write_bytes(encode(of))
    if log is not None:
        (folder / LOG).write_bytes(log)


def found(root, named):
    return find_log(load_records([root]), named)


@pytest.fixture
def root(tmp_path):
    said = b"loading\n10 %\r50 %\r100 %\r\n\x1b[31mred\x1b[0m\x07 \xff\x9b2J\n"
    keep(tmp_path / "a", record(case(), id="a"), said)
    keep(tmp_path / "b", failure(case("openvino"), id="b"), b"it broke\n")
    keep(tmp_path / "c", record(case("openvino", precision="fp16"), id="c"), b"")
    keep(tmp_path / "d", failure(case("tensorrt:rtx"), id="d", output_tail=("the", "end")))
    return tmp_path


@pytest.mark.parametrize(("named", "text"), [
    ("pytorch", "loading\n100 %\nred  \ufffd\ufffd2J"), ("openvino fp32 batch 1 cpu", "it broke"),
    ("resnet18 openvino", "it broke"),  # the only one that did not run
    ("fp16", ""), ("tensorrt", "the\nend"), ("c", ""),
])  # fmt: skip
def test_the_case_that_is_meant(root, named, text):
    assert found(root, named).text == text


@pytest.mark.parametrize(("named", "count"), [("nothing", 0), ("resnet18", 4), ("", 0)])
def test_none_or_several(root, named, count):
    refusal(f"fits {count or 'no'} cases.*'openvino fp32 batch 1 cpu'", found, root, named)


def test_a_long_log_and_what_is_no_file(tmp_path):
    keep(tmp_path / "a", record(case(), id="a"), b"x\n" * 2 * MOST_LINES + b"last\n")
    keep(tmp_path / "b", record(case("openvino"), id="b"))
    os.mkfifo(tmp_path / "b" / LOG)
    long = found(tmp_path, "pytorch")
    assert (long.cut, len(long.text.splitlines()), long.text[-4:]) == (True, MOST_LINES, "last")
    assert (found(tmp_path, "openvino").text, found(tmp_path, "openvino").path) == ("", None)
