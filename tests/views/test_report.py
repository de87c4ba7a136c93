"""One page of all that is known: what is in it, that nothing in it can do harm, and what it does in a browser."""

import base64
import csv
import gzip
import json
import re
import xml.etree.ElementTree as ET
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
from inferlens.views.picture import THEMES, chart_data
from inferlens.views.profiles.cases import cases_of_level, group_profiles
from inferlens.views.profiles.modules import icicle
from inferlens.views.renderers import html, render_markdown_report
from inferlens.views.table import Column, Document, Line, Report, Section, Table
from inferlens.views.trace_documents import (
    TIMELINE_BINS,
    ReportTrace,
    load_traces,
    step_timeline,
    steps_chart,
    trace_differences,
)
from tests.commands import output_of
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


@pytest.fixture(scope="module")
def page(profiled: pages.ReportInputs) -> str:
    """The page of two profiled cases; one for all tests that look at it."""
    return html.render_report(pages.report(profiled))


@pytest.fixture(scope="module")
def batches_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of two batch sizes on a GPU."""
    return page_of(stored(tmp_path_factory.mktemp("batches"), gpu_records((1, 8))))


@pytest.fixture(scope="module")
def kernels_page() -> str:
    return page_of(next(EXAMPLES.glob("kernels/bert/tensorrt*b32*")))


def test_everything_of_an_example_is_on_the_page(page):
    headings = ["Answer", "Comparison", "Where the time goes", "How it was measured"]
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


def test_the_answer_names_the_next_and_how_the_fastest_of_each_batch_size_is_used(tmp_path):
    records = [item for item in gpu_records((1, 32)) if (item.case.backend, item.case.batch) != ("tensorrt", 32)]
    answer = html.fragment(list(pages.answer_section(pages.load_inputs([stored(tmp_path, records)]))))
    names = ["tensorrt fp16", "onnxruntime:<wbr>tensorrt fp16", "pytorch fp32"]
    assert re.findall(r'class="name">(.*?)</th>', answer) == [
        *names, names[1], "torch_compile:<wbr>inductor fp16", names[2],
    ]  # fmt: skip
    assert "energy" not in answer  # of which nothing is known
    assert re.findall(r"Use it[^:]*", answer) == ["Use it at batch 1", "Use it at batch 32"]


def test_of_two_traces_what_takes_less_is_green():
    page = page_of(*(EXAMPLES / "traces" / name for name in ("ttrt_fp16_bs8", "pytorch_bs1")))
    assert re.search(r'<tr class="green"><th[^>]*>tensorrt::execute_engine</th>', page)


def test_traces_are_compared_with_the_first_of_their_batch_size():
    paths = [*map(EXAMPLES.joinpath, ("traces/pytorch_bs1", "traces/pytorch_bs8", "traces/ttrt_fp16_bs8"))]
    loaded = [*load_traces([trace for path in paths for trace in traces_under(path)])]
    titles = [difference.title for difference in trace_differences([*loaded, ReportTrace("damaged_bs1")])]
    assert titles == ["ttrt_fp16_bs8 against pytorch_bs8"]
    titles = [difference.title for difference in trace_differences(loaded[:2])]
    assert titles == ["pytorch_bs8 against pytorch_bs1"]


def test_steps_of_a_trace_add_up():
    (path,) = traces_under(EXAMPLES / "traces" / "pytorch_bs1")
    analysis = Analysis(read_trace(path))
    (values,) = chart_data(steps_chart(analysis, "one", THEMES["light"]))
    for label, seconds in zip(analysis.steps.names, analysis.steps.end - analysis.steps.begin, strict=True):
        total = sum(value["time (ms)"] for value in values if value["step"] == label)
        assert total == pytest.approx(seconds / 1e6, rel=0.005)


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


@pytest.mark.parametrize("name", SETS)
def test_draws_whatever_was_measured(tmp_path, name, one_size):
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


def test_many_models_and_machines_begin_with_an_index(tmp_path):
    inputs = pages.load_inputs([stored(tmp_path, [*cpu_records(), *gpu_records((1, 8))])])
    answer = html.fragment(list(pages.answer_section(inputs)))
    index = answer[: answer.index("</table>")]
    assert index.count("<tr") == 1 + 3  # one on the CPU, two batch sizes on the GPU
    assert "NVIDIA" in index
    assert 'class="bar"' not in index  # of unlike models
    assert re.findall(r"<summary>.*?(Intel|NVIDIA)", answer) == ["Intel", "NVIDIA"]


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


def test_the_command_writes_it(tmp_path):
    stored(tmp_path / "results", cpu_records()[:2])
    for name in ("a.html", "a.md"):
        output_of("report", "results", "-o", name, cwd=tmp_path)
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "Use it: inferlens export --best results/1 --output deploy" in page
    assert (tmp_path / "a-pictures" / "comparison-1.svg").exists()


# In a browser


def open_page(browser: Any, folder: Path, page: str, **words: Any) -> tuple[Any, list[str]]:
    """The page in the browser, and what it complained of, said or asked the network for."""
    file = folder / "page.html"
    file.write_text(page)
    troubles: list[str] = []
    tab = browser.new_context(color_scheme="dark", **words).new_page()
    tab.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
    tab.on(
        "request", lambda request: None if request.url.startswith(("file:", "data:")) else troubles.append(request.url)
    )
    tab.goto(file.as_uri())
    return tab, troubles


def without_scripts(browser: Any, folder: Path, page: str) -> Any:
    """The page where no script may run: in a frame that allows none."""
    (folder / "framed.html").write_text(page)
    frame = '<iframe sandbox="allow-same-origin" src="framed.html" width="1200" height="800"></iframe>'
    return open_page(browser, folder, frame)[0].frame_locator("iframe")


PAPER = "getComputedStyle(document.documentElement).backgroundColor"
# What holds in print holds on the screen too.
AS_PRINTED = """for (const sheet of document.styleSheets) for (const rule of sheet.cssRules)
    if (rule.media?.mediaText === "print") rule.media.mediaText = "all";"""


@pytest.fixture(scope="module")
def page_tab(browser: Any, tmp_path_factory: pytest.TempPathFactory, page: str) -> tuple[Any, list[str]]:
    """The page of two profiled cases, opened once: tests leave it as they have it, but for folded sections."""
    return open_page(browser, tmp_path_factory.mktemp("page"), page)


def column(table: Any, place: int) -> list[str]:
    return [text.strip() for text in table.locator(f"tbody tr:visible td:nth-child({place})").all_inner_texts()]


def test_tables_sort_filter_and_show_all_columns(any_browser, tmp_path):
    section = pages.comparison_section(pages.load_inputs([stored(tmp_path / "r", gpu_records((1, 8)))]))
    blocks = [item for item in section if isinstance(item, Table)]
    page = html.render_report(Report("a model", [Section("comparison", "Comparison", blocks)]))
    tab, troubles = open_page(any_browser, tmp_path, page)
    table = tab.locator("#comparison table").first
    place = table.locator("thead th").all_inner_texts().index("latency (ms)") + 1
    before = table.locator("thead th:visible").count()
    for reverse in (False, True):
        table.locator(f"thead th:nth-child({place}) button").click()
        values = [float(text) for text in column(table, place) if text not in ("", "–")]
        assert values == sorted(values, reverse=reverse)
    tab.locator("#comparison button", has_text="all columns").first.click()
    assert table.locator("thead th:visible").count() > before
    filters = tab.locator("#comparison input")
    if filters.count():
        filters.first.fill("pytorch")
        assert all("pytorch" in text for text in table.locator("tbody tr:visible").all_inner_texts())
    assert troubles == []


def test_the_line_of_a_case_that_took_turns_is_at_the_latency_of_the_table():
    run = CaseRuns((in_turns(*[[0.01] * 20] * 3, *[[0.02] * 20] * 6),))
    _, line = samples_chart([("pytorch", run)], THEMES["light"])["layer"]
    assert line["data"]["values"] == [{"way": "pytorch", "median": pytest.approx(10)}]
    assert case_numbers(run, 1)["median"] == pytest.approx(0.01)


def test_columns_are_chosen_and_long_tables_begin_short(browser, tmp_path):
    columns = [Column(name, name, wide=name == "e") for name in "abcde"]
    lines = [Line.from_row(f"row {number}", columns, dict.fromkeys("abcde", number)) for number in range(350)]
    page = html.render_html(Document(lambda: [Table("", "way", columns, lines)], dict))
    tab, troubles = open_page(browser, tmp_path, page)
    rows = tab.locator("tbody tr:visible")
    assert rows.count() == 300
    tab.get_by_label("filter rows").fill("row 349")
    assert rows.count() == 1
    tab.get_by_label("filter rows").fill("")
    tab.get_by_role("button", name="show all 350 rows").click()
    assert rows.count() == 350
    tab.locator("summary", has_text="columns").click()
    for name in "be":
        tab.get_by_role("checkbox", name=name).click()
    assert tab.locator("thead th:visible").all_inner_texts() == ["way", "a", "c", "d", "e"]
    assert troubles == []
    plain = without_scripts(browser, tmp_path, (tmp_path / "page.html").read_text())
    assert plain.locator("tbody tr:visible").count() == 350


def test_series_are_hidden_and_numbers_are_taken_along(page_tab, page):
    tab, troubles = page_tab
    tab.evaluate("document.querySelectorAll('details').forEach(item => item.open = true)")
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
    assert troubles == []


def test_trees_fold(page_tab):
    tab, troubles = page_tab
    table = tab.locator("#time table:has(tr[data-depth])").first
    rows = table.locator("tbody tr:visible").count()
    table.locator(".fold-row").first.click()
    assert table.locator("tbody tr:visible").count() < rows
    table.locator(".fold-row").first.click()
    assert table.locator("tbody tr:visible").count() == rows
    assert troubles == []


def test_dark_and_narrow(page_tab):
    tab, troubles = page_tab
    tab.set_viewport_size({"width": 390, "height": 800})
    dark = tab.evaluate(PAPER)
    tab.locator("nav button").click()
    assert tab.evaluate(PAPER) == "rgb(255, 255, 255)" != dark
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    tab.set_viewport_size({"width": 1100, "height": 800})
    cut = "[...document.querySelectorAll('#answer .scroll')].filter(item => item.scrollWidth > item.clientWidth).length"
    assert tab.evaluate(cut) == 0  # the answer is seen whole
    assert troubles == []


WIDER = """[...document.querySelectorAll("figure")].filter(item => item.scrollWidth > item.clientWidth || [
    ...item.querySelectorAll("svg")].some(svg => svg.getBoundingClientRect().width > item.clientWidth + 1)).length"""


def test_a_phone_shows_the_answer_and_whole_charts(any_browser, tmp_path, page, batches_page, kernels_page):
    size = {"width": 390, "height": 844}
    for item in (page, batches_page, kernels_page):
        tab, _ = open_page(any_browser, tmp_path, item, viewport=size)
        latency = tab.locator("#answer .answer, #answer tbody td", has_text=re.compile(r"\d+ (ms|µs)|^\d\.\d+$")).first
        place = latency.bounding_box()
        assert place["y"] + place["height"] <= size["height"]
        assert place["x"] + place["width"] <= size["width"]
        tab.evaluate("document.querySelectorAll('details').forEach(item => item.open = true)")
        assert tab.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert tab.evaluate(WIDER) == 0
        assert tab.locator("figure svg:visible").count() == tab.locator("figure").count() > 0
        tab.close()


def test_all_is_printed_but_what_is_to_be_clicked(browser, tmp_path, one_size):
    tab, troubles = open_page(browser, tmp_path, page_of(stored(tmp_path / "r", cpu_records())))
    folded = tab.locator("details:not(.columns):not([open])")
    assert folded.count() > 0
    assert tab.pdf().startswith(b"%PDF")
    assert folded.count() == 0
    tab.evaluate(AS_PRINTED)
    assert not tab.locator("nav, .tools").first.is_visible()
    assert tab.evaluate(PAPER) == "rgb(255, 255, 255)"
    assert troubles == []


def test_hostile_names_do_nothing(browser, tmp_path, one_size):
    tab, troubles = open_page(browser, tmp_path, page_of(stored(tmp_path / "r", SETS["hostile"])))
    assert tab.locator("img").count() == 0
    assert "\u202e" not in tab.content()
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert troubles == []


def test_reads_without_scripts(browser, tmp_path, page):
    tab = without_scripts(browser, tmp_path, page)
    assert tab.locator(".tools").count() == 0
    assert tab.locator("#comparison th.extra").first.is_visible()
    assert tab.locator("figure svg").first.is_visible()
    assert tab.locator("#tree-1 table").first.is_visible()


def test_axe_finds_no_serious_fault(browser, tmp_path, page):
    axe = pytest.importorskip("axe_core_python", reason="axe is not there")
    tab, _ = open_page(browser, tmp_path, page, bypass_csp=True)
    tab.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text())
    alike = "figure svg > *, tbody tr:nth-child(n+3)"  # of which there are thousands
    tab.evaluate(f"document.querySelectorAll('{alike}').forEach(item => item.remove())")
    faults = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    serious = [(item["id"], item["nodes"][0]["html"]) for item in faults if item["impact"] in ("serious", "critical")]
    assert serious == []


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
