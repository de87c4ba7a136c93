"""One page of all that is known: what is in it, that nothing in it can do harm, and what it does in a browser."""

import base64
import csv
import gzip
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jsonschema
import pytest

from inferlens.analysis.measures import case_numbers
from inferlens.analysis.samples import CaseRuns
from inferlens.record.record import decode
from inferlens.trace.analysis import Analysis
from inferlens.trace.distributed import traces_under
from inferlens.trace.read import read_trace
from inferlens.views import report as pages
from inferlens.views.chart import points_chart, records_chart, samples_chart
from inferlens.views.picture import THEMES
from inferlens.views.profiles.cases import cases_of_level, group_profiles
from inferlens.views.profiles.modules import icicle
from inferlens.views.renderers import html, render_markdown_report
from inferlens.views.table import Column, Line, Report, Section, Table
from inferlens.views.trace_documents import (
    TIMELINE_BINS,
    ReportTrace,
    load_traces,
    step_timeline,
    trace_differences,
)
from tests.refusals import refusal
from tests.trace.samples import event, kernel, launch, step, text, training
from tests.views.samples import cpu_records, gpu_records, in_turns, stored
from tests.views.test_records import SETS

pytestmark = pytest.mark.usefixtures("charts")
EXAMPLES = Path(__file__).parents[2] / "examples" / "h200"
PROFILES = EXAMPLES / "profiles"


def page_of(*paths: Path) -> str:
    return html.render_report(pages.report(pages.load_inputs(paths)))


@pytest.fixture(scope="module")
def profiled() -> pages.ReportInputs:
    return pages.load_inputs([PROFILES])


COLUMNS = [Column(name, name, wide=name == "e") for name in "abcde"]
LINES = [Line.from_row(f"way-{n}", COLUMNS, dict.fromkeys("abcde", 11 * n % 350)) for n in range(350)]


@pytest.fixture(scope="module")
def page(profiled: pages.ReportInputs) -> str:
    """The page of two profiled cases with a long table; one for all tests that look at it."""
    report = pages.report(profiled)
    long = Section("long", "Long", [Table("", "way", COLUMNS, LINES)])
    return html.render_report(Report(report.title, [*report.sections, long]))


@pytest.fixture(scope="module")
def batches_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of two batch sizes on a GPU."""
    return page_of(stored(tmp_path_factory.mktemp("batches"), gpu_records((1, 8))))


def test_everything_of_an_example_is_on_the_page(page):
    headings = ["Answer", "Comparison", "Where the time goes", "How it was measured", "Long"]
    assert re.findall(r"<h2>(.*?)</h2>", page) == headings
    drawn = {"comparison-1", "spread-1", "samples-1", "modules-1", "roofline-1", "layers-1"}
    assert drawn <= {*re.findall(r'download="([\w-]+)\.csv"', page)}
    assert page.count("</figure>") == page.count("<figcaption>") == page.count("</figcaption>")


def test_boxes_of_modules_add_up_to_the_call(profiled):
    (picture,) = icicle(group_profiles(profiled.profiles)[0], "modules")
    values = [value for value in picture.values if value["case"] == "pytorch"]
    assert sum(value["share"] for value in values if value["depth"] == 0) == pytest.approx(1, abs=0.01)
    outer = next(value for value in values if value["module"] == "layer3")
    inner = [value for value in values if value["depth"] == 1 and value["module"].startswith("layer3")]
    assert sum(value["share"] for value in inner) == pytest.approx(outer["share"], abs=0.01)
    assert min(value["left"] for value in inner) == outer["left"]
    assert len(set(re.findall(r'fill="(#\w+)"[^>]*layer3\.\d;', picture.svg(False)))) == 1


def test_a_backend_has_one_colour_in_all_charts(tmp_path):
    inputs = pages.load_inputs([stored(tmp_path, gpu_records((1, 8)))])
    panels = records_chart(inputs.rows, THEMES["light"], colours=inputs.colours)["vconcat"][0]["vconcat"]
    lines = panels[0]["hconcat"][0]
    colour = lines["layer"][0]["encoding"]["color"]["scale"]
    points = points_chart(inputs.rows, "error", THEMES["light"], inputs.colours)
    shades = points["vconcat"][0]["vconcat"][0]["layer"][1]["encoding"]["color"]["scale"]
    for name, shade in zip(colour["domain"], colour["range"], strict=True):
        assert inputs.colours[name.removesuffix(" fp16").removesuffix(" fp32")] == shade
    assert dict(zip(shades["domain"], shades["range"], strict=True)).items() <= inputs.colours.items()


def test_traces_are_compared_with_the_first_of_their_batch_size():
    paths = [*map(EXAMPLES.joinpath, ("traces/pytorch_bs1", "traces/pytorch_bs8", "traces/ttrt_fp16_bs8"))]
    loaded = [*load_traces([trace for path in paths for trace in traces_under(path)])]
    titles = [difference.title for difference in trace_differences([*loaded, ReportTrace("damaged_bs1")])]
    assert titles == ["ttrt_fp16_bs8 against pytorch_bs8"]
    titles = [difference.title for difference in trace_differences(loaded[:2])]
    assert titles == ["pytorch_bs8 against pytorch_bs1"]


def test_the_engine_is_drawn_as_a_graph_or_how_to_draw_it_is_said(page, profiled, monkeypatch):
    pytest.importorskip("pygraphviz", reason="Graphviz is not there")
    assert page.count('<figure class="white"') == 2
    assert len(page) < 3_000_000
    case = cases_of_level(profiled.profiles, "layer")[0]
    monkeypatch.setattr("inferlens.views.report.MAX_GRAPH", 1000)
    assert pages._graph_blocks(case, 1) == [pages.LARGE]


def test_it_loads_nothing_and_its_identifiers_are_its_own(page):
    assert not re.search(r'(src|href|xlink:href)="(?!data:|#)', page)
    assert not re.search(r"url\((?!#)|@import", page)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert re.fullmatch("default-src 'none'; style-src 'sha256-.*; base-uri 'none'; form-action 'none'", policy)
    assert "unsafe" not in policy
    assert not re.search(r'<[^>]+ style="', page)
    names = re.findall(r'\bid="([^"]*)"', page)
    assert len(names) == len({*names})


def test_records_are_inside_to_take_along_and_the_command_that_repeats_them(tmp_path):
    records = cpu_records()
    blocks = list(pages.how_it_was_measured(pages.load_inputs([stored(tmp_path, records)])))
    (line,) = [block for block in blocks if isinstance(block, str)]
    assert line.startswith("Repeat it: inferlens bench resnet18 -b pytorch,torchscript:trace,")
    assert line.endswith(" --precision fp32,bf16 --batch 1")
    page = html.fragment(blocks)
    (link,) = re.findall(r'download="records.jsonl.gz" href="data:application/gzip;base64,([^"]*)"', page)
    lines = gzip.decompress(base64.b64decode(link)).splitlines()
    assert {decode(line).id for line in lines} == {record.id for record in records}


@pytest.mark.parametrize("name", sorted(SETS.keys() - {"many", "machines and models", "mixed batches"}))
def test_draws_whatever_was_measured(tmp_path, name, one_size):
    """The sets that are left out are pages of goldens."""
    reported = pages.report(pages.load_inputs([stored(tmp_path, SETS[name])]))
    page = html.render_report(reported)
    assert re.findall(r"<(script|img)", page) == ["script"]
    text, pictures = render_markdown_report(reported, "pictures")
    assert {*re.findall(r"\(pictures/(.*?)\)", text)} == {*pictures}


def first_values(part: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a chart with its first numbers only, as the schema is slow and does not look into them."""
    return part | {"values": part["values"][:2]} if "values" in part else part


def test_its_charts_are_vega_lite(charts, page, batches_page):
    schema = pytest.importorskip("altair.vegalite.v6.schema.core", reason="its schema is not there").load_schema()
    valid = jsonschema.validators.validator_for(schema)(schema)
    kinds = {re.sub(r"[\d.]+", "0", item): item for item in charts if '"padding": 20' in item}  # not those for phones
    assert len(kinds) > 6
    for kind in kinds.values():
        chart = json.loads(kind, object_hook=first_values)
        del chart["config"]  # a part of which is Vega's
        assert valid.is_valid(chart)


def test_long_cells_are_whole_and_bars_of_characters_are_pictures():
    libraries = ", ".join(f"library-{number} 1.{number}" for number in range(60))
    columns = [Column("a", "", numeric=False, fold=True), Column("b", "", numeric=False)]
    lines = [Line("libraries", (libraries, "█▎")), Line("none", ("", ""))]
    cells = html.fragment([Table("", "machine", columns, lines)])
    assert libraries in cells
    assert '<span class="blocks" aria-hidden="true">█▎</span>' in cells


def test_broken_files_are_said_and_the_rest_is_shown(tmp_path):
    folder = stored(tmp_path, cpu_records())
    (folder / "broken").mkdir()
    (folder / "broken" / "record.json").write_text("{")
    assert "broken/record.json was left out" in html.fragment(
        list(pages.how_it_was_measured(pages.load_inputs([folder])))
    )
    (tmp_path / "empty").mkdir()
    refusal("nothing to report", pages.load_inputs, [tmp_path / "empty"])


def test_the_line_of_a_case_that_took_turns_is_at_the_latency_of_the_table():
    run = CaseRuns((in_turns(*[[0.01] * 20] * 3, *[[0.02] * 20] * 6),))
    _, line = samples_chart([("pytorch", run)], THEMES["light"])["layer"]
    assert line["data"]["values"] == [{"way": "pytorch", "median": pytest.approx(10)}]
    assert case_numbers(run, 1)["median"] == pytest.approx(0.01)


# In a browser


def open_page(browser: Any, folder: Path, page: str, **words: Any) -> tuple[Any, list[str]]:
    """The page in the browser, and what it complained of, said or asked the network for."""
    (folder / "page.html").write_text(page)
    troubles: list[str] = []
    tab = browser.new_context(color_scheme="dark", **words).new_page()
    tab.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
    tab.on("request", lambda request: request.url.startswith(("file:", "data:")) or troubles.append(request.url))
    tab.goto((folder / "page.html").as_uri())
    return tab, troubles


def fold(tab: Any, *, opened: bool) -> None:
    tab.evaluate(f"document.querySelectorAll('details').forEach(item => item.open = {str(opened).lower()})")


PAPER = "getComputedStyle(document.documentElement).backgroundColor"
DESK, PHONE = {"width": 1100, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory, page: str) -> tuple[Any, list[str]]:
    """The page of two profiled cases, opened once: tests leave it as they have it, but for folded sections."""
    return open_page(browser, tmp_path_factory.mktemp("page"), page, viewport=DESK)


@pytest.fixture
def tab(opened: tuple[Any, list[str]]) -> Iterator[Any]:
    """The page that was opened once, which has no troubles."""
    yield opened[0]
    assert opened[1] == []


def check_tables(tab: Any) -> None:
    """Tables sort, filter, begin short and show the columns that are chosen."""
    fold(tab, opened=False)
    section = tab.locator("#long")
    rows, heads = section.locator("tbody tr:visible"), section.locator("thead th:visible")
    assert (rows.count(), heads.all_inner_texts()) == (300, ["way", "a", "b", "c", "d"])
    for reverse in (False, True):
        heads.nth(1).get_by_role("button").click()
        values = [int(text) for text in section.locator("tbody tr:visible td:nth-child(2)").all_inner_texts()]
        assert values == sorted(range(350), reverse=reverse)[:300]
    for words, count in (("way-349", 1), ("", 300)):
        section.get_by_label("filter rows").fill(words)
        assert rows.count() == count
    section.get_by_role("button", name="show all 350 rows").click()
    assert rows.count() == 350
    section.locator("summary", has_text="columns").click()
    for name in "be":
        section.get_by_role("checkbox", name=name).click()
    assert heads.all_inner_texts() == ["way", "a", "c", "d", "e"]
    section.locator("button", has_text="all columns").click()
    assert heads.count() == 6


def test_tables_sort_filter_and_choose_columns(tab):
    check_tables(tab)


def test_series_are_hidden_and_numbers_are_taken_along(tab, page):
    fold(tab, opened=True)
    chart = tab.locator("figure", has=tab.locator("[download='roofline-1.csv']"))
    name, mark = chart.get_by_role("button", name="memory"), "> svg [aria-label*='floor by: memory']"
    many = chart.locator(mark).count()
    assert chart.locator(f"{mark}:visible").count() == many > 0
    name.focus()
    tab.keyboard.press("Enter")
    assert (name.get_attribute("aria-pressed"), chart.locator(f"{mark}:visible").count()) == ("false", 0)
    assert chart.locator("[role='graphics-symbol']:visible").count() > 0
    name.click()
    assert chart.locator(f"{mark}:visible").count() == many
    with tab.expect_download() as taken:
        tab.locator("[download='samples-1.json']").click()
    values = json.loads(Path(taken.value.path()).read_text())
    (link,) = re.findall(r'download="samples-1.csv" href="data:text/csv,([^"]*)"', page)
    lines = list(csv.DictReader(unquote(link).splitlines()))
    assert [float(line["median"]) for line in lines] == [value["median"] for value in values]
    assert {value["way"] for value in values} == {"tensorrt:rtx", "pytorch"}


def test_trees_fold(tab):
    fold(tab, opened=True)
    table = tab.locator("#time table:has(tr[data-depth])").first
    rows = table.locator("tbody tr:visible").count()
    table.locator(".fold-row").first.click()
    assert table.locator("tbody tr:visible").count() < rows
    table.locator(".fold-row").first.click()
    assert table.locator("tbody tr:visible").count() == rows


def test_dark_and_narrow(tab):
    tab.set_viewport_size(PHONE)
    dark = tab.evaluate(PAPER)
    tab.locator("nav button").click()
    assert tab.evaluate(PAPER) == "rgb(255, 255, 255)" != dark
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    tab.set_viewport_size(DESK)
    cut = "[...document.querySelectorAll('#answer .scroll')].filter(item => item.scrollWidth > item.clientWidth).length"
    assert tab.evaluate(cut) == 0  # the answer is seen whole


def test_all_is_printed_but_what_is_to_be_clicked(tab):
    fold(tab, opened=False)
    folded = tab.locator("details:not(.columns):not([open])")
    assert folded.count() > 0
    assert tab.pdf().startswith(b"%PDF")
    assert folded.count() == 0
    tab.emulate_media(media="print", color_scheme="dark")
    assert not tab.locator("nav, .tools").first.is_visible()
    assert tab.evaluate(PAPER) == "rgb(255, 255, 255)"
    tab.emulate_media(media="screen", color_scheme="dark")


def test_axe_finds_no_serious_fault(tab):
    axe = pytest.importorskip("axe_core_python", reason="axe is not there")
    tab.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text())
    alike = "figure svg > *, tbody tr:nth-child(n+3)"  # of which there are thousands
    tab.evaluate(f"document.querySelectorAll('{alike}').forEach(item => item.remove())")
    faults = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    tab.reload()
    serious = [(item["id"], item["nodes"][0]["html"]) for item in faults if item["impact"] in ("serious", "critical")]
    assert serious == []


WIDER = """[...document.querySelectorAll("figure")].filter(item => item.scrollWidth > item.clientWidth || [
    ...item.querySelectorAll("svg")].some(svg => svg.getBoundingClientRect().width > item.clientWidth + 1)).length"""


def check_phone(tab: Any) -> None:
    """A phone shows the answer, and charts are whole."""
    latency = tab.locator("#answer .answer, #answer tbody td", has_text=re.compile(r"\d+ (ms|µs)|^\d\.\d+$")).first
    place = latency.bounding_box()
    assert place["y"] + place["height"] <= PHONE["height"]
    assert place["x"] + place["width"] <= PHONE["width"]
    fold(tab, opened=True)
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert tab.evaluate(WIDER) == 0
    assert tab.locator("figure svg:visible").count() == tab.locator("figure").count() > 0


def test_a_phone_shows_the_answer_and_whole_charts(browser, tmp_path, batches_page):
    for item in (batches_page, page_of(next(EXAMPLES.glob("kernels/bert/tensorrt*b32*")))):
        tab, _ = open_page(browser, tmp_path, item, viewport=PHONE)
        check_phone(tab)
        tab.close()


def test_another_browser_lays_out_and_runs_the_page_alike(firefox, tmp_path, page):
    tab, troubles = open_page(firefox, tmp_path, page, viewport=PHONE)
    check_phone(tab)
    tab.set_viewport_size(DESK)
    check_tables(tab)
    assert troubles == []


def test_hostile_names_do_nothing(browser, tmp_path, one_size):
    tab, troubles = open_page(browser, tmp_path, page_of(stored(tmp_path / "r", SETS["hostile"])))
    assert tab.locator("img").count() == 0
    assert "\u202e" not in tab.content()
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert troubles == []


def test_reads_without_scripts(browser, tmp_path, page):
    """In a frame that allows none."""
    (tmp_path / "framed.html").write_text(page)
    frame = '<iframe sandbox="allow-same-origin" src="framed.html" width="1200" height="800"></iframe>'
    tab = open_page(browser, tmp_path, frame)[0].frame_locator("iframe")
    assert tab.locator(".tools").count() == 0
    assert tab.locator("#long tbody tr:visible").count() == 350
    for place in ("#comparison th.extra", "figure svg", "#tree-1 table"):
        assert tab.locator(place).first.is_visible()


# The picture of what ran when in one step of a trace.

SVG = "{http://www.w3.org/2000/svg}"


def timeline(data: bytes) -> str:
    picture = step_timeline(Analysis(read_trace(data)), "timeline-1")
    return picture.svg(False) if picture else ""


def lanes_and_boxes(data: bytes) -> tuple[list[str], dict[str, tuple[float, float, float]]]:
    """The names of the lanes, and of each box where it begins, how wide it is, as shares, and how far down it is."""
    root = ET.fromstring(timeline(data))
    wide = float(root.attrib["width"])
    boxes = {}
    for item in root.iter(f"{SVG}rect"):
        left, width, down = (float(item.attrib[name]) for name in ("x", "width", "y"))
        boxes[item.attrib["data-tip"].split(";")[0]] = (left / wide, width / wide, down)
    return [item.text or "" for item in root.iter(f"{SVG}text") if "font-weight" in item.attrib], boxes


def test_host_threads_nest_and_streams_stand_beneath():
    lanes, boxes = lanes_and_boxes(training())
    assert [re.sub(r".* · ", "", lane) for lane in lanes] == ["thread 1", "stream 7", "stream 8"]
    assert re.match(r"step [01], \d+ µs · host", lanes[0])
    linear, mm, call, gemm = (boxes[name] for name in ("aten::linear", "aten::mm", "cudaLaunchKernel", "s16816gemm"))
    assert mm[1] / linear[1] == pytest.approx(1 / 3, rel=1e-3)
    assert gemm[1] == pytest.approx(mm[1], rel=1e-3)  # 100 µs each
    assert linear[2] < mm[2] < gemm[2]
    assert call[2] in (mm[2], mm[2] + (mm[2] - linear[2]))
    assert mm[0] - linear[0] == pytest.approx(linear[1] / 6, rel=1e-3)


def test_many_short_events_are_few_boxes_that_say_how_many_they_are():
    calls = [(launch(n, 2 * n, 1), kernel(n, 2 * n + 0.5, 1.5, "tiny")) for n in range(1, 10_000)]
    events = [event("aten::big", 1, 20_000), *(item for pair in calls for item in pair)]
    boxes = re.findall(r'data-tip="(.*?);', timeline(text(step(1, 0, 20_100), *events)))
    assert len(boxes) <= 3 * TIMELINE_BINS
    counts = [re.fullmatch(r"([\d,]+) events", box) for box in boxes]
    assert sum(int(item[1].replace(",", "")) if item else 1 for item in counts) == 2 * len(calls) + 1


def test_events_without_length_and_those_that_began_before_the_step():
    early = [launch(1, 90, 5), kernel(1, 150, 100)]
    events = [step(1, 100, 100), event("aten::early", 80, 40), event("aten::a", 100, 0), event("aten::b", 101, 0)]
    picture = timeline(text(*events, *early))
    tops = [float(item) for item in re.findall(r'<rect x="[^"]*" y="([^"]*)"', picture)]
    assert min(tops) >= 26  # beneath the title
    assert "aten::early" in picture
    assert timeline(text()) == "", "of a trace in which nothing happened"
