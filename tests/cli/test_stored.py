"""Commands on stored data as a person or a workflow runs them, also of load tests: tables, exit codes and files."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import typing
from pathlib import Path
from xml.etree import ElementTree as Xml

import msgspec
import pytest
import typer

from inferlens import ab, compare
from inferlens.analysis.comparison import METRICS, Verdict
from inferlens.cli.commands import COMMANDS, app
from inferlens.cli.screen import ENDINGS
from inferlens.execution import ab as ab_run
from inferlens.execution.protocol import PlannedCase
from inferlens.record.load import Limit, LoadRecord
from inferlens.record.record import Environment
from inferlens.views.comparison import COMPARISON_FORMATS
from tests.commands import inferlens, output_of, refusal_of
from tests.snapshots import compare_with_stored
from tests.views.samples import WRONG, broken, case, on_busy_machine, ran, saved
from tests.views.test_load import load_race, load_record, mixed_record, saved_loads

# Which runs are shown

OTHER = case("openvino")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs: the second is fastest, and in the last the first case is slow; the other case is in the first."""
    for day, seconds in (("01", 10e-3), ("02", 5e-3), ("03", 20e-3)):
        made = {"run": day, "created": f"2026-05-{day}T10:00:00Z"}
        saved(tmp_path / "results", [*ran(seconds=seconds, **made), *(ran(OTHER, 9e-3, **made) if day == "01" else [])])
    return tmp_path


RUNS = {
    "the newest run": "", "each run": "--runs all", "each run against openvino": "--runs all --reference openvino",
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_runs_are_shown_and_counted_and_no_row_is_compared_with_another_run_s(name, runs):
    compare_with_stored(f"records/{name}", output_of("show", "results", *RUNS[name].split(), cwd=runs))


def test_runs_as_data(runs):
    def rows(*words):
        return json.loads(output_of("show", "results", *words, "--json", cwd=runs))["rows"]

    assert {row["backend"]: row["runs"] for row in rows()} == {"pytorch": 3, "openvino": 1}
    every = rows("--runs", "all", "--reference", "openvino")
    assert [(row["run"][8:10], row["backend"], row["fastest"], row["reference"].split()[0]) for row in every] == [
        ("01", "openvino", True, "openvino"), ("01", "pytorch", False, "openvino"),
        ("02", "pytorch", True, "pytorch"), ("03", "pytorch", True, "pytorch"),
    ]  # fmt: skip


def test_of_a_single_run_nothing_is_said(tmp_path):
    saved(tmp_path / "one", ran())
    assert "several runs" not in inferlens("show", "one", cwd=tmp_path).stdout


def test_chosen_columns_still_tell_at_which_batch_a_row_is():
    shown = output_of("show", "examples/h200/tensorrt/resnet50", "--columns", "latency", cwd=ROOT)
    (header,) = [line for line in shown.splitlines() if line.strip().startswith("way")]
    assert header.split() == ["way", "batch", "ms"]


# compare


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return saved(tmp_path / "base", [*ran(noise=10), *ran(OTHER)])


def candidate(folder: Path, records: list) -> Path:
    return saved(folder / "new", [msgspec.structs.replace(each, run="new", id=f"{each.id} new") for each in records])


FASTER, SLOWER = ([*ran(seconds=seconds, noise=10), *ran(OTHER)] for seconds in (2e-3, 15e-3))
BUSY = "Of the candidate alone: Other programs used 1.0 of 2 CPUs. Changes may come from that."


@pytest.mark.parametrize(("records", "busy", "code", "word"), [
    (FASTER, False, 0, "FASTER"), ([*ran(seconds=15e-3, noise=10), broken(OTHER)], False, 1, "SLOWER"),
    ([*ran(noise=10), *ran(OTHER)], False, 3, "UNDECIDED"),
    ([*ran(noise=10), *ran(OTHER, 1e-3, agreement=WRONG)], False, 4, "wrong"),
    (ran(noise=10), False, 4, "ONLY IN BASE"), (FASTER, True, 5, BUSY), (SLOWER, True, 5, BUSY), (ran(), True, 4, BUSY),
])  # fmt: skip
def test_exit_codes_also_on_a_busy_machine_if_asked(tmp_path, base, records, busy, code, word):
    candidate(tmp_path, [on_busy_machine(each) if busy else each for each in records])
    done = inferlens("compare", "base", "new", *(("--fail-on-busy",) if busy else ()), cwd=tmp_path)
    assert (done.returncode, done.stderr, word in done.stdout) == (code, "", True), done.stdout
    plain = inferlens("compare", "base", "new", cwd=tmp_path)
    assert not busy or (plain.returncode in (0, 1, 4), BUSY in plain.stdout) == (True, True)


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
    page = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    page, _, turns = page.partition("## One against another")
    turns = re.sub(r"\s+", " ", turns)
    assert all(f"{code}: " in turns or f"{code} " in turns for code in (0, 1, 2, 3, 4, 130))
    assert set(re.findall(r"^\| `([A-Z]+(?: [A-Z]{2,})*)` \|", page, re.M)) == set(typing.get_args(Verdict))
    assert all(f"`{format}`" in page for format in COMPARISON_FORMATS)
    assert all(metric in page for metric in METRICS)
    assert re.findall(r"^\| (\d) \|", page, re.M) == ["0", "1", "2", "3", "4", "5"]


# Load tests


def rounds(capacity: float, name: str = "a", **fields: object) -> list[LoadRecord]:
    """Rounds of one way whose capacities are half a percent apart."""
    return [
        load_record(capacity=capacity * (1 + 0.005 * number), round=number, id=f"{name}{number}", **fields)
        for number in range(5)
    ]


def test_show_takes_the_folder_or_the_one_above_which_mentions_it_beside_records(tmp_path: Path) -> None:
    saved_loads(tmp_path / "results" / "resnet18", load_race())
    for path in ("results/resnet18/load", "results"):
        done = inferlens("show", path, cwd=tmp_path)
        assert "FASTEST  openvino: 201 requests/s, 1.99x the next" in done.stdout, done.stderr
    saved(tmp_path / "results" / "resnet18", ran())
    done = inferlens("show", "results/resnet18", cwd=tmp_path)
    assert "More results of it: inferlens show results/resnet18/load" in done.stderr


@pytest.mark.parametrize(("records", "code", "word"), [
    (rounds(80.0, "b"), 1, "SLOWER"), (rounds(100.0, "b"), 0, "SAME"), (rounds(130.0, "b"), 0, "FASTER"),
    (rounds(100.0, "b", agreement=WRONG), 4, "wrong"), ([load_record(capacity=None, id="c")], 4, "not measured"),
    (rounds(100.0, "b", limit=Limit(0.95, 0.01)), 2, "No traffic was searched for its capacity on both sides"),
], ids=["slower", "same", "faster", "wrong", "not measured", "other traffic"])  # fmt: skip
def test_a_regression_in_capacity_is_an_exit_code(tmp_path, records, code, word):
    saved_loads(tmp_path / "a", rounds(100.0))
    saved_loads(tmp_path / "b", records)
    for words in (("a/load", "b/load"), ("a", "b"), ("a", "b", "--metric", "capacity")):
        done = inferlens("compare", *words, cwd=tmp_path)
        assert (done.returncode, word in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    if code != 2:
        assert "capacity, 5 rounds on each side" in done.stdout or code == 4
        data = json.loads(inferlens("compare", "a/load", "b/load", "--format", "json", cwd=tmp_path).stdout)
        compared = compare(tmp_path / "a" / "load", tmp_path / "b" / "load")
        assert (data["metric"], data["exit_code"]) == (compared.metric, compared.exit_code) == ("capacity", code)


@pytest.mark.parametrize(("capacity", "verdict", "code"), [
    (80.0, "SLOWER", 1), (130.0, "FASTER", 0), (None, "DID NOT RUN", 4),
])  # fmt: skip
def test_ab_compares_capacities_in_rounds(tmp_path, one_process, monkeypatch, capacity, verdict, code):
    """The search for a capacity takes half a minute, so its records are planted."""

    def planted(_: object, planned: PlannedCase, limit: str, number: int, *__: object) -> LoadRecord:
        assert limit == "p99=20ms"
        own = 100.0 if planned.case.variant == "steady" else capacity
        return load_record(capacity=own and own + number, round=number, case=planned.case, id=f"{number}{own}")

    monkeypatch.setattr(ab_run, "measure_capacity", planted)
    words = {"metric": "capacity", "limit": "p99=20ms", "output": str(tmp_path)}
    result = ab("fake:demo", "fake:steady", "fake:fast", **words)
    assert (result.verdict, result.exit_code) == (verdict, code)
    if capacity:
        assert "as many requests/s as A" in str(result)


def test_a_chart_is_drawn_in_each_form(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    saved_loads(tmp_path / "results", load_race())
    for name in ("load.svg", "load.png", "load.html"):
        done = inferlens("show", "results", "--plot", name, "--theme", "dark", cwd=tmp_path)
        assert (done.returncode, (tmp_path / name).stat().st_size > 10_000) == (0, True), done.stderr
    svg = (tmp_path / "load.svg").read_text("utf-8")
    for words in ("FASTEST · openvino", "limit 50.1 ms", "load (requests/s)", "busy (%)", "took longer", "that wait"):
        assert words in svg


def test_a_report_has_a_section_for_load_tests(tmp_path: Path, undrawn: None) -> None:
    saved(tmp_path / "both", ran())
    for folder in ("both", "only"):
        saved_loads(tmp_path / folder, [*load_race(), load_record("onnxruntime", 50.0), mixed_record()])
        done = inferlens("report", folder, "-o", f"{folder}.md", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        text = (tmp_path / f"{folder}.md").read_text("utf-8")
        assert "## Under load" in text
        assert "FASTEST openvino: 201 requests/s" in text
        assert "Requests by size" in text
        assert (tmp_path / f"{folder}-pictures" / "load-1.svg").exists()


# ``-o FILE``: what is shown goes to a file, in the format of its ending, whole or not at all.

EXAMPLES = ROOT / "examples" / "h200"
PROFILES = f"{EXAMPLES}/profiles/resnet50/tensorrt-rtx-fp16-b1-cuda"
# What each shows of stored data, or with the fake backend. A partition needs PyTorch, and has a test of its own.
SHOWN = {
    "show": "show base", "compare": "compare base new", "show --view notes": "show base --view notes",
    "show --view findings": f"show {PROFILES} --view findings",
    "modules": f"modules {PROFILES}", "layers": f"layers {PROFILES}", "roofline": f"roofline {PROFILES}",
    "kernels": f"kernels {EXAMPLES}/kernels/bert/tensorrt-rtx-fp16-b1-cuda",
    "trace": f"trace {next(iter(sorted(EXAMPLES.glob('traces/**/*.json*'))))}", "backends": "backends",
    "bench": "bench fake:demo -b fake:steady,fake:fast --iterations 20 --warmup 1",
    "ab": "ab fake:demo fake:steady fake:fast --iterations 20 --warmup 1",
    "profile": "profile fake:demo -b fake:steady --runs 5 --max-time 1s",
}  # fmt: skip
PICTURES_AND_MODELS = {"graph", "report", "export", "quantize"}
AS_WELL = ("bench", "ab", "profile", "compare")  # these print too


@pytest.fixture
def here(tmp_path: Path) -> Path:
    saved(tmp_path / "base", ran())
    saved(tmp_path / "new", ran(run="new"))
    return tmp_path


def test_every_command_has_it():
    group = typer.main.get_command(app)
    context = typer.Context(group)
    for name in COMMANDS:
        options = {word for each in group.get_command(context, name).params for word in each.opts}
        assert "-o" in options or name == "export", name
    names = {words.partition(" ")[0] for words in SHOWN}
    assert names | PICTURES_AND_MODELS | {"partition", "tune", "load"} == set(COMMANDS)
    assert len(COMMANDS) <= 18


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("ending", [".json", ".md"])
def test_the_file_has_what_is_shown(name, ending, here):
    words = shlex.split(SHOWN[name])
    done = inferlens(*words, "-o", f"file{ending}", cwd=here)
    assert (done.returncode, f"Wrote file{ending}." in done.stderr) == (0, True), done.stderr
    assert bool(done.stdout) == (name in AS_WELL)
    written = (here / f"file{ending}").read_text()
    assert json.loads(written) if ending == ".json" else written
    assert "\x1b" not in written


@pytest.mark.parametrize(("words", "file"), [("show --plot compare.svg", "compare.svg"), ("report", "report.html")])
def test_what_replaces_a_file_says_so(words, file, here):
    said = [inferlens(*words.split(), "base", cwd=here).stderr for _ in range(2)]
    assert [each.splitlines()[-1] for each in said] == [f"Wrote {file}.", f"Replaced {file}."]


@pytest.mark.parametrize("name", SHOWN)
def test_a_file_that_cannot_be_written_is_one_message_and_is_not_there(name, here):
    (here / "folder.md").mkdir()
    for file in ("file.xlsx", "folder.md", "nowhere/file.md"):
        refusal_of(*shlex.split(SHOWN[name]), "-o", file, cwd=here)
        assert not (here / "results").exists(), "refused before anything is measured"
    assert not (here / "file.xlsx").exists()


def test_endings_are_said_in_the_help():
    assert all(ending in output_of("show", "--help", cwd=Path()) for ending in ENDINGS)


@pytest.fixture
def chromium(tmp_path_factory, monkeypatch):
    """Put a script in the place of Chromium."""

    def install(script):
        path = tmp_path_factory.mktemp("browser") / "chromium"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")

    return install


@pytest.mark.skipif(not shutil.which("chromium"), reason="Chromium is not there")
@pytest.mark.parametrize("words", ["report base", SHOWN["show"], SHOWN["trace"]])
def test_a_pdf_is_the_page_on_paper(words, here, chromium):
    if words != "report base":
        chromium('for word; do case $word in --print-to-pdf=*) echo %PDF > "${word#*=}";; esac; done')
    done = inferlens(*shlex.split(words), "-o", "a.pdf", cwd=here)
    assert done.returncode in (0, 1, 3), done.stderr
    assert "Wrote a.pdf." in done.stderr
    assert (here / "a.pdf").read_bytes().startswith(b"%PDF")
    assert {each.name for each in here.iterdir()} <= {"a.pdf", "base", "new", "results"}


def test_without_chromium_a_pdf_is_refused_before_anything_is_measured(here, monkeypatch):
    monkeypatch.setenv("PATH", str(here))
    for words in ("show base", "report nothing", SHOWN["bench"]):
        refusal = refusal_of(*shlex.split(words), "-o", "a.pdf", cwd=here)
        assert ("Chromium" in refusal, "apt install" in refusal) == (True, True)


def test_a_browser_that_does_not_print_is_said(here, chromium):
    chromium("echo It has no memory. >&2")
    assert "printed no PDF: It has no memory." in refusal_of("show", "base", "-o", "a.pdf", cwd=here)
    assert not (here / "a.pdf").exists()
