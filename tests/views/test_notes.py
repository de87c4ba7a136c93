"""``inferlens show --view notes``: a screen of them, all case by case, as data; and the lines under a table."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from inferlens.record.record import Record, Warning, encode
from inferlens.views.notes import document
from inferlens.views.table import render
from tests.commands import inferlens
from tests.views.samples import WRONG, case, record, sample_records

SCREEN = """\
torchvision:resnet18, 3 cases. Notes: 1 changing the answer, 2 weakening it and 1 good to know.

CHANGES THE ANSWER
  onnxruntime:cpu          Wrong outputs: relative L2 error 0.52 is above 0.0001.
                           → Do not use it; another precision may be right.
WEAKENS IT
  pytorch and torchscript  There are 7 to 12 samples only.
                           → More --iterations, --seconds or --max-time.
GOOD TO KNOW
  pytorch                  The exporter failed.
                           → Nothing.
"""


def three() -> list[Record]:
    exported = Warning("export-fallback", "The exporter failed.", "Nothing.")
    return [
        record(case(), samples=(0.01, 0.0101, 0.0099) * 4, warnings=(exported,)),
        record(case("torchscript"), samples=(0.01, 0.0101, 0.0099, 0.0098, 0.0102, 0.01, 0.01)),
        record(case("onnxruntime:cpu"), agreement=WRONG),
    ]


def many() -> list[Record]:
    warned = [
        Warning(f"code-{letter}", f"The {letter} of it is wrong {'in words ' * 9}", "Mend it.")
        for letter in "abcdefghijkl"
    ]
    return [record(case(f"backend{place}"), warnings=(warning,)) for place, warning in enumerate(warned)]


def test_the_screen() -> None:
    assert render(document(three()), width=100) == SCREEN


@pytest.mark.parametrize("records", [three(), many(), sample_records()], ids=["three", "many", "samples"])
def test_it_fits_on_a_screen_and_says_how_many_more(records: list[Record]) -> None:
    lines = render(document(records, paths="there"), width=100).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    shown = sum("→" in line for line in lines)
    more = [int(line.split()[0]) for line in lines if line.endswith("more: inferlens show there --view notes --all")]
    assert bool(more) == (shown < len(records) == 12)


def test_all_of_it_case_by_case_and_nothing() -> None:
    drawn = render(document(many(), every=True), width=100)
    assert all(f"resnet18 backend{place} " in drawn for place in range(12))
    assert render(document([record()])) == "torchvision:resnet18, 1 case. Notes: none.\n"


def test_as_data(tmp_path: Path) -> None:
    for place, item in enumerate(three()):
        (tmp_path / str(place)).mkdir()
        (tmp_path / str(place) / "record.json").write_bytes(encode(item))
    data = json.loads(inferlens("show", ".", "--view", "notes", "--json", cwd=tmp_path).stdout)
    assert data["schema"] == "inferlens.warnings/1"
    found = {one["label"]: [(item["code"], item["level"]) for item in one["warnings"]] for one in data["cases"]}
    assert found["onnxruntime:cpu fp32 batch 1 cpu"] == [("wrong-outputs", "changes")]
    assert found["pytorch fp32 batch 1 cpu"] == [("few-samples", "weakens"), ("export-fallback", "know")]
    table = list(
        csv.DictReader(io.StringIO(inferlens("show", ".", "--view", "notes", "--format", "csv", cwd=tmp_path).stdout))
    )
    assert [row["code"] for row in table if row["level"] == "changes"] == ["wrong-outputs"]
    assert inferlens("show", ".", "--view", "notes", "-o", "notes.md", cwd=tmp_path).stdout == ""
    assert "| changes the answer | Wrong outputs" in (tmp_path / "notes.md").read_text(encoding="utf-8")


def test_the_first_demo_says_nothing_against_itself_and_a_failed_case_has_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    inferlens("bench", "fake:demo", "--backend", "all", "--batch", "1,8", "--iterations", "50", "--quick", cwd=tmp_path)
    assert inferlens("show", "results", "--view", "notes", cwd=tmp_path).stdout == "fake:demo, 6 cases. Notes: none.\n"
    inferlens("bench", "fake:demo", "--backend", "fake:fast", "--option", "fake.trouble=raise", cwd=tmp_path)
    said = " ".join(inferlens("show", "results", "--view", "notes", cwd=tmp_path).stdout.split())
    assert "→ inferlens show --log 'fake:fast fp32 batch 1 cpu trouble=raise' results" in said
    done = inferlens("show", "results", "--log", "fake:fast trouble=raise", cwd=tmp_path)
    assert done.stdout.rstrip().endswith("RuntimeError: this backend was told to fail")
    assert (done.returncode, "failed" in done.stderr) == (0, True)
    assert "inferlens show results --log 'fake:fast" in inferlens("show", "results", cwd=tmp_path).stdout
    inferlens("show", "results", "--log", "fake:fast trouble=raise", "-o", "log.txt", cwd=tmp_path)
    assert (tmp_path / "log.txt").read_text(encoding="utf-8") == done.stdout
    assert inferlens("show", "results", "--log", "fake:steady", cwd=tmp_path).returncode == 2
