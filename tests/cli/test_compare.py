"""``inferlens compare`` as a person or a workflow runs it: exit codes, formats, files, and what it refuses."""

import re
import typing
from pathlib import Path
from xml.etree import ElementTree as Xml

import msgspec
import pytest

from inferlens.analysis.comparison import METRICS, Verdict
from inferlens.record.record import Environment
from inferlens.views.comparison import COMPARISON_FORMATS
from tests.commands import inferlens, output_of, refusal_of
from tests.views.samples import WRONG, broken, case, on_busy_machine, ran, saved

OTHER = case("openvino")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return saved(tmp_path / "base", [*ran(noise=10), *ran(OTHER)])


def candidate(folder: Path, records: list) -> Path:
    return saved(folder / "new", [msgspec.structs.replace(each, run="new", id=f"{each.id} new") for each in records])


@pytest.mark.parametrize(("records", "code", "word"), [
    ([*ran(seconds=2e-3, noise=10), *ran(OTHER)], 0, "FASTER"),
    ([*ran(seconds=15e-3, noise=10), broken(OTHER)], 1, "SLOWER"), ([*ran(noise=10), *ran(OTHER)], 3, "UNDECIDED"),
    ([*ran(noise=10), *ran(OTHER, 1e-3, agreement=WRONG)], 4, "wrong"), (ran(noise=10), 4, "ONLY IN BASE"),
])  # fmt: skip
def test_exit_codes(tmp_path, base, records, code, word):
    candidate(tmp_path, records)
    done = inferlens("compare", "base", "new", cwd=tmp_path)
    assert (done.returncode, done.stderr, word in done.stdout) == (code, "", True), done.stdout


@pytest.mark.parametrize(("records", "code"), [
    ([*ran(seconds=2e-3), *ran(OTHER)], 5), ([*ran(seconds=15e-3), *ran(OTHER)], 5), (ran(), 4),
], ids=["faster", "slower", "did not run"])  # fmt: skip
def test_on_a_busy_machine_the_exit_code_says_so_if_asked(tmp_path, base, records, code):
    candidate(tmp_path, [on_busy_machine(each) for each in records])
    plain, asked = (inferlens("compare", "base", "new", *more, cwd=tmp_path) for more in ((), ("--fail-on-busy",)))
    assert plain.returncode in (0, 1, 4)
    assert asked.returncode == code
    assert "Of the candidate alone: Other programs used 1.0 of 2 CPUs. Changes may come from that." in plain.stdout


def test_a_file_and_the_table_beside_it(tmp_path, base):
    candidate(tmp_path, [*ran(seconds=15e-3), *ran(OTHER)])
    table = inferlens("compare", "base", "new", cwd=tmp_path).stdout
    done = inferlens("compare", "base", "new", "-f", "junit", "-o", "report.xml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, table)
    assert "Wrote report.xml" in done.stderr
    assert Xml.parse(tmp_path / "report.xml").getroot().tag == "testsuites"
    assert inferlens("compare", "base", "new", "-o", "nowhere/report.xml", cwd=tmp_path).returncode == 2


def test_metric_threshold_and_level(tmp_path):
    saved(tmp_path / "base", ran(rate=100.0))
    candidate(tmp_path, ran(seconds=10.5e-3, rate=110.0))
    for words, code, said in (
        ((), 1, "SLOWER"), (("--threshold", "0.2"), 0, ""), (("--threshold", "20 %", "--level", "99%"), 0, ""),
        (("--metric", "throughput"), 0, "FASTER"), (("--metric", "throughput"), 0, "+10.0 ± 0.3 %"),
        (("--metric", "GPU time"), 4, ""),
    ):  # fmt: skip
        done = inferlens("compare", "base", "new", *words, cwd=tmp_path)
        assert (done.returncode, said in done.stdout) == (code, True), words


def test_unlike_machines_are_refused_unless_told(tmp_path):
    saved(tmp_path / "base", ran())
    candidate(tmp_path, ran(environment=Environment(cpu="another \x1b[31m", cpu_threads=4)))
    said = refusal_of("compare", "base", "new", cwd=tmp_path)
    for words in ("CPU: Intel(R) Xeon(R) Platinum 8480C / another", "CPU threads: 16 / 4", "--unlike"):
        assert words in said
    assert "\x1b" not in said
    assert "Not the same conditions" in output_of("compare", "base", "new", "--unlike", cwd=tmp_path)


def test_files_that_are_no_records_are_said_and_the_rest_is_compared(tmp_path):
    saved(tmp_path / "base", ran())
    new = candidate(tmp_path, ran())
    (new / "broken").mkdir()
    (new / "broken" / "record.json").write_bytes(b'{"schema":"inferlens.record/9"}')
    done = inferlens("compare", "base", "new", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("was left out"), "SAME" in done.stdout) == (0, 1, True), done.stderr


def test_the_page_names_every_verdict_format_metric_and_code():
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    page, _, turns = page.partition("## One against another")
    turns = re.sub(r"\s+", " ", turns)
    assert all(f"{code}: " in turns or f"{code} " in turns for code in (0, 1, 2, 3, 4, 130))
    assert set(re.findall(r"^\| `([A-Z]+(?: [A-Z]{2,})*)` \|", page, re.M)) == set(typing.get_args(Verdict))
    assert all(f"`{format}`" in page for format in COMPARISON_FORMATS)
    assert all(metric in page for metric in METRICS)
    assert re.findall(r"^\| (\d) \|", page, re.M) == ["0", "1", "2", "3", "4", "5"]
