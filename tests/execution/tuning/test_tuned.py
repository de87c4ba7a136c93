"""How a tuning ended: what its screen, page and chart say, that it is kept, and what else lies in a model's folder."""

import base64
import gzip
import json
import re
import shutil
from pathlib import Path
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from inferlens.analysis.tuning import REPORT, WINNER, SkippedCandidate, candidate_facts, load_tuning
from inferlens.errors import InferlensError
from inferlens.execution.tuning.space import search_selection, skipped
from inferlens.record.store import TRIALS
from inferlens.spec.plan import Plan
from inferlens.views.renderers import render
from inferlens.views.tuning import render_tuning as drawn
from inferlens.views.tuning import tuning_document, tunings_sentences
from tests.commands import inferlens, stay
from tests.execution.tuning.test_space import space
from tests.execution.tuning.test_tune import KNOB_A, tune
from tests.refusals import refusal
from tests.spec.test_plan import GPU_HOST, LAPTOP, RESNET

pytestmark = pytest.mark.usefixtures("one_process")
RESNET18 = Path(__file__).parents[3] / "examples" / "cpu" / "tuned" / "resnet18" / "tuning"
KNOBS = ("fake:steady", "fake:fast", "fp32", "fake.knob_a", "fake.knob_b", "fake.knob_f")


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A folder with a tuning in ``results/demo``, and how it ended."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        stay(patch)
        return folder, tune(folder / "results", only=KNOBS)


@pytest.fixture
def here(once, tmp_path):
    """A copy of the folder."""
    shutil.copytree(once[0] / "results", tmp_path / "results")
    return tmp_path


def ended(folder):
    return load_tuning(folder / "results" / "demo" / "tuning")


def shown(tuned, format="table"):
    return " ".join(render(tuning_document(tuned), format).split())


def test_it_is_shown_again_as_it_ended(once, here):
    folder, tuned = once
    assert load_tuning(folder / "results" / "demo" / "tuning") == tuned
    done = inferlens("show", "results/demo/tuning", cwd=here)
    _, below, *_ = [line for line in done.stdout.split("\n\n")[1].splitlines() if line]
    assert re.match(r"Tried \d+ of \d+ candidates in ", below)
    assert done.stdout == render(tuning_document(replace(tuned, folder="results/demo/best")), "table")
    for path in ("results/demo", "results/demo/tuning/tuned.json"):
        assert inferlens("show", path, cwd=here).stdout == done.stdout
    kept = (here / "results" / "demo" / "tuning" / REPORT).read_text()
    assert "samples" not in kept, "records are beside it"


def test_every_format_has_all_that_was_tried(here):
    count = len(ended(here).candidates)
    data = json.loads(inferlens("show", "results/demo/tuning", "--json", cwd=here).stdout)
    assert data["schema"] == "inferlens.tuning/1"
    assert len(data["candidates"]) == data["tried"] == count
    first = data["candidates"][0]
    assert (first["outcome"], first["settings"]) == (WINNER, "knob_a=1 knob_b=2 knob_f=2")
    table = inferlens("show", "results/demo/tuning", "--format", "csv", cwd=here).stdout
    assert len(table.splitlines()) == count + 1
    inferlens("show", "results/demo/tuning", "-o", "page.html", cwd=here)
    page = (here / "page.html").read_text()
    assert page.index("FASTEST") < page.index("What its settings do") < page.index("Everything that was tried")
    assert page.count("<tr") == 1 + 2 + 1 + count, "the finals, and all"


def test_a_report_answers_once_and_has_the_records_of_all_finals(once, here):
    assert inferlens("report", "results", "-o", "page.html", cwd=here).returncode == 0
    page = (here / "page.html").read_text()
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["Answer", "Tuning", "How it was measured"]
    answer = page[: page.index('id="tuning"')]
    assert answer.count("<b>FASTEST</b>") == answer.count("<table>") == 1
    (packed,) = re.findall(r'download="records.jsonl.gz" href="data:application/gzip;base64,([^"]*)"', page)
    lines = gzip.decompress(base64.b64decode(packed)).splitlines()
    assert {json.loads(line)["id"] for line in lines} == {record.id for record in once[1].final_records}


def test_the_screen_has_the_answer_five_rows_effects_and_what_was_left_out(here):
    lines = inferlens("show", "results/demo/tuning", cwd=here).stdout.splitlines()
    assert len(lines) <= 24
    assert lines[2].startswith("FASTEST  fake:fast knob_a=1 knob_b=2 knob_f=2  1.43 ms  1.40x fake:fast (1.30 to 1.51)")
    rows = [line for line in lines if re.match(r" [ \d] fake:", line)]
    assert [("in the search" in row) for row in rows] == [False, False, True, True, True]
    assert [row[1] for row in rows] == ["1", " ", " ", " ", " "], "others are not in the ranking of the finals"
    speedups = {row.split("  ")[1].strip(): re.search(r"[\d.]+x", row)[0] for row in rows[2:]}
    assert float(speedups["fake:fast knob_a=1 knob_b=2"][:-1]) == pytest.approx(1 / (0.8 * 0.95), rel=0.01)
    said = " ".join(lines)
    assert re.search(r"knob_f=2 1\.06x \(1\.0\d to 1\.0\d\), build \+60 s", said)
    assert re.search(r"Not tried: \S+ and \d more \(--only\)", said)
    assert "inferlens bench results/demo/best/best.toml" in said


def test_why_candidates_are_out_is_said(tmp_path):
    tuned = tune(tmp_path, only=(*KNOB_A, "fake.knob_e", "fake.knob_f"), limits=("build=5s",))
    came = {one.case.options_label: one.outcome for one in candidate_facts(tuned)}
    assert came.pop("knob_a=1") == WINNER
    assert all(why.startswith("wrong outputs: ") for name, why in came.items() if "knob_e" in name)
    assert any("knob_e" in name for name in came)
    limited = [why for name, why in came.items() if "knob_f" in name and "knob_e" not in name]
    limited = {why.partition(", beyond the limit of 5.00 s")[0] for why in limited}
    assert set() < limited <= {"The build time is 10 s", "The build time is 1 min 00 s"}
    assert came[""] == "slower in the finals"
    assert "wrong outputs" in shown(tuned, "html")


def test_every_limit_that_the_answer_breaks_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a long path would be on the screen
    tuned = tune(Path("results"), only=KNOB_A, limits=("memory=1KiB", "p99=1us", "error=1e-2"))
    for said in (shown(tuned), " ".join(tunings_sentences([tuned]))):
        assert re.search(r"othing keeps all limits.* The peak memory is .* The p99 latency is ", said)
        assert "The error is" not in said


def test_where_nothing_ran_the_reason_is_said(tmp_path):
    tuned = tune(tmp_path, option=["fake.trouble=raise"], only=KNOB_A)
    said = shown(load_tuning(tmp_path / "demo" / "tuning"))
    assert said == shown(tuned)
    assert said.startswith("Nothing ran with right outputs. fake:steady")
    refusal("nothing was timed", drawn, tuned, "svg")


@pytest.mark.parametrize(("objective", "limits", "expected"), [
    ("latency.p95", (), ("BEST", "knob_a=1", "p95 latency 3.2")), ("memory", ("error=1%",), ("peak memory", "error")),
])  # fmt: skip
def test_other_objectives_are_answered_in_their_measure(tmp_path, objective, limits, expected):
    tuned = tune(tmp_path, objective=objective, limits=limits, only=KNOB_A)
    said = render(tuning_document(tuned), "table")
    assert all(word in said for word in expected), said
    assert load_tuning(tmp_path / "demo" / "tuning") == tuned
    best, *others = [one for one in candidate_facts(tuned) if one.objective]
    cost = tuned.objective.measure.cost
    if objective != "memory":
        assert all(cost(one.objective or 0.0) > cost(best.objective or 0.0) for one in others)


def test_an_objective_that_nothing_here_tells_is_refused_after_one_round(tmp_path):
    with pytest.raises(InferlensError, match="energy for one item is not known"):
        tune(tmp_path, objective="energy", only=("fake:steady", "fake:fast", "fp32", "fake.knob_a"))


def test_where_nothing_here_tells_a_limit_the_answer_says_that_it_breaks_it(tmp_path):
    tuned = tune(tmp_path, limits=("energy=0.001mJ",), only=("fake:steady", "fake:fast", "fp32", "fake.knob_a"))
    assert tuned.best
    assert tuned.broken_constraints


# What was not tried


def left_out(able, asked=MappingProxyType({}), **words):
    plan = Plan.from_words({"model": RESNET.spec, **asked})
    return {each.name: each for each in skipped(space(able, RESNET, words, **asked), search_selection(**words), plan)}


def test_what_was_not_tried_says_why_and_what_would_have_it_tried():
    names = left_out(LAPTOP, only=["fp32"])
    assert [(names[each].reason, names[each].hint) for each in ("fp16", "bf16")] == [("", "--only")] * 2
    assert names["onnxruntime:cuda"].hint == "pip install onnxruntime-gpu"
    assert "fp32" not in names
    assert "fake" not in names
    on_gpu = left_out(GPU_HOST)
    assert on_gpu["torchscript:trace"].hint == "--device cpu"
    assert left_out(LAPTOP)["onnxruntime:cpu fp16"].reason
    whole = {name for name, each in left_out(LAPTOP).items() if not each.reason}
    assert not whole, "what takes no such model is nothing to try"
    assert left_out(LAPTOP, {"backend": "onnxruntime:cpu"}).keys() >= {"pytorch", "openvino"}
    assert "bf16" in left_out(LAPTOP, {"precision": "fp32"})


def test_a_tuning_that_ran_out_of_time_says_what_it_did_not_reach(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tuned = tune(Path("results"), only=("fake:fast", "fake:steady"), budget=1e-6)
    assert not tuned.complete
    assert "Not tried: fake:steady (time was over)" in shown(tuned)
    assert tuned.best.precision == "fp32", "the others are as fast"


def test_several_tunings_say_what_was_not_tried(once):
    late = SkippedCandidate(name="pytorch", reason="time was over")
    lacking = SkippedCandidate(name="openvino", hint="pip install openvino")
    said = tunings_sentences([replace(once[1], skipped=each) for each in ((lacking,), (late, lacking))])
    assert "Not tried everywhere: openvino (not installed: inferlens backends); pytorch (time was over)." in said


# The folder


def test_records_of_a_run_beside_it_are_shown_by_themselves(here):
    inferlens("bench", "fake:demo", "-b", "fake:noisy", "--quick", cwd=here)
    done = inferlens("show", "results/demo", cwd=here)
    assert ("fake:noisy" in done.stdout, "knob_a" in done.stdout) == (True, False)
    assert "inferlens show results/demo/tuning" in done.stderr
    for path in ("results/demo/best", "results/demo/tuning"):
        assert "knob_a" in inferlens("show", path, cwd=here).stdout


def test_several_tunings_are_shown_again_together(tmp_path):
    words = ("--batch", "1,8", "--only", "fake:steady,fp32,fake.knob_a", "--budget", "60s", "-o", "page.html")
    first = inferlens("tune", "fake:demo", *words, cwd=tmp_path)
    assert first.stderr.count("final round 1 of 2: fake:steady knob_a=1 1.25x fake:steady") == 2
    assert (tmp_path / "page.html").read_text().count(">Everything that was tried: demo, batch") == 2
    for path in ("results", "results/demo"):
        assert inferlens("show", path, cwd=tmp_path).stdout == first.stdout
    words = ("--reference", "fake:steady,knob_a=1", "--format", "markdown")
    assert inferlens("show", "results", *words, cwd=tmp_path).stdout.count("0.800x") == 2
    one = inferlens("show", "results/demo/batch-8/tuning", cwd=tmp_path)
    assert "inferlens bench results/demo/batch-8/best/best.toml" in " ".join(one.stdout.split())
    refused = inferlens("show", "results/demo", "--plot", "x.svg", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "inferlens show results/demo/batch-1/tuning --plot" in refused.stderr


def broken(change):
    def apply(folder):
        data = json.loads((folder / REPORT).read_text())
        change(data)
        (folder / REPORT).write_text(json.dumps(data))

    return apply


@pytest.mark.parametrize(("change", "message"), [
    (lambda folder: (folder / REPORT).unlink(), "is not over"),
    (lambda folder: (folder / TRIALS).unlink(), "is not over"),
    (lambda folder: (folder / REPORT).write_text("{"), "is broken"),
    (lambda folder: (folder / REPORT).write_text("[" * 100_000), "is broken"),
    (lambda folder: (folder / REPORT).write_text('{"schema": "inferlens.tuned/9"}'), "inferlens.tuned/9"),
    (lambda folder: (folder / TRIALS).write_text("about\n{}\n"), "is broken"),
    (lambda folder: (folder / TRIALS).write_text("about\n"), "is not about the rounds"),
    (broken(lambda data: data["objective"].update(name="beauty")), "no measure 'beauty'"),
    (broken(lambda data: data["candidates"][0].update(speedup=-1.0)), "is broken"),
    (broken(lambda data: data["candidates"][0].update(record="\x1b[31mother")), "is not about the rounds"),
    (broken(lambda data: data.update(best=None)), "is not about the rounds"),
    (broken(lambda data: data["best"]["options"].update(knob_a=7)), "is not about the rounds"),
    (broken(lambda data: data.update(seconds=1e300)), "is broken"),
])  # fmt: skip
def test_what_is_broken_is_one_error(here, change, message):
    change(here / "results" / "demo" / "tuning")
    for command in (("show",), ("show", "--plot", "tuned.svg")):
        done = inferlens(*command, "results/demo/tuning", cwd=here)
        assert (done.returncode, done.stdout, done.stderr.count("Error:"), "\x1b" in done.stderr) == (2, "", 1, False)
        assert message in done.stderr


def test_names_in_it_cannot_steer_a_terminal_or_a_page(here):
    evil = "\x1b[31m<script>alert(1)</script>"

    def change(data):
        data["effects"][0]["setting"] = data["untried"][0]["name"] = data["candidates"][1]["out"] = evil
        data["candidates"][1]["settings"], data["missed"] = [evil], [evil]

    broken(change)(here / "results" / "demo" / "tuning")
    assert "\x1b" not in inferlens("show", "results/demo/tuning", cwd=here).stdout
    for option, file in (("-o", "page.html"), ("--plot", "picture.svg")):
        inferlens("show", "results/demo/tuning", option, file, cwd=here)
        assert "<script>alert" not in (here / file).read_text()


# The chart


def test_the_chart_names_the_winner_the_defaults_and_the_reference(here):
    assert inferlens("show", "results/demo/tuning", "--plot", "tuned.svg", cwd=here).returncode == 0
    said = [re.sub("<[^>]*>", "", each) for each in re.findall("<text.*?</text>", (here / "tuned.svg").read_text())]
    assert said.count("winner") == said.count("best defaults, reference") == 2, "in both panels"
    assert "demo: FASTEST · fake:fast knob_a=1 knob_b=2 knob_f=2 · 1.43 ms" in " ".join(said)
    assert "median latency (ms)" in said
    wrong = inferlens("show", "results/demo/tuning", "--plot", "tuned.gif", cwd=here)
    assert (wrong.returncode, wrong.stdout) == (2, "")
