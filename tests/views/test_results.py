"""Records from Python: a sequence that prints its table, knows the fastest, and becomes data frames."""

import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pandas
import polars
import pytest

import inferlens
from inferlens import Records, load_profiles, load_records
from inferlens.analysis.tuning import load_tuning
from inferlens.record.store import LoadedProfiles
from inferlens.views.rows import Row
from tests.analysis.profiles import eager, fused
from tests.refusals import refusal
from tests.views.profiled import loaded
from tests.views.samples import case, cpu_records, gpu_records, ran, record, sample_records, saved, shown, stored
from tests.views.test_quantization import made

CPU = Records(cpu_records())


def test_it_is_the_records_in_their_order():
    records = cpu_records()
    assert list(CPU) == CPU.records == records
    assert (CPU[0], CPU[-1], len(CPU), CPU.index(records[2])) == (records[0], records[-1], len(records), 2)
    assert isinstance(CPU[1:3], Records)
    assert records == CPU == Records(records[:2]) + records[2:]
    assert records != CPU[:2]


def test_it_prints_the_table_that_the_command_prints():
    assert str(CPU) + "\n" == shown(cpu_records(), width=100)
    assert CPU.render("csv") == shown(cpu_records(), "csv")
    assert str(CPU.against("openvino fp32")) + "\n" == shown(cpu_records(), reference="openvino fp32", width=100)
    assert repr(CPU) == f"<{len(CPU)} records of torchvision:resnet18, 6 ran>"
    assert repr(Records([])) == "<no records>"
    assert str(Records([])) == "There are no records to show."


def test_the_fastest_of_one_comparison_and_of_each():
    one = Records([*ran(seconds=5e-3), *ran(case("openvino"), 1e-3)])
    assert one.fastest.case == case("openvino")
    assert one.equally_fast == (one.fastest,)
    equal = Records([*ran(seconds=1.0005e-3), *ran(case("openvino"), 1e-3), *ran(case("onnxruntime:cpu"), 9e-3)])
    assert [record.case.backend for record in equal.equally_fast] == ["openvino", "pytorch"]
    assert equal.fastest == equal.equally_fast[0]
    several = Records(sample_records())
    refusal("comparisons", getattr, several, "fastest")
    parts = several.comparisons
    assert sum(map(len, parts)) == len(several)
    repeated = Records([*ran(), *ran(case(batch=8)), *ran(case("openvino"))])
    assert [len(comparison) for comparison in repeated.comparisons] == [10, 5]
    assert len({part.fastest.id for part in parts}) == len(parts) == 3
    refusal("right outputs", getattr, Records(cpu_records()[-2:]), "fastest")


def test_runs_are_told_apart():
    records = Records([*ran(run="b", created="2026-05-04T11:00:00Z"), *ran(run="a", created="2026-05-03T10:00:00Z")])
    assert [{record.run for record in one} for one in records.runs] == [{"a"}, {"b"}]
    assert records.fastest.run == "b"


def test_frames_have_every_column_with_its_type():
    records = Records(gpu_records())
    one, other = records.to_polars(), records.to_pandas()
    left_out = ("machine_load", "sizes", "form")
    names = [field.encode_name for field in msgspec.structs.fields(Row) if field.name not in left_out]
    assert one.columns == list(other.columns) == [*names[:-1], "image_size", "notes"]
    assert len(one) == len(other) == len(records.rows)
    assert one["median"].to_list() == [row.median for row in records.rows]
    types = {"image_size": polars.Int64, "median": polars.Float64, "energy": polars.Float64, "batch": polars.Int64,
             "ranked": polars.Boolean, "notes": polars.List(polars.String)}  # fmt: skip
    assert {name: one[name].dtype for name in types} == types
    assert other["median"].dtype == other["energy"].dtype == "float64"
    assert isinstance(other, pandas.DataFrame)
    assert other.loc[other["fastest"].fillna(value=False), "median"].min() == other["median"].min()
    assert Records([]).to_polars().columns == names


@pytest.mark.parametrize("name", ["polars", "pandas"])
def test_a_missing_library_is_an_answer(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    assert "frames" in refusal(f"{name} is not installed", getattr(CPU, f"to_{name}")).hint


def test_one_path_or_many(tmp_path):
    one, path = saved(tmp_path / "one", ran()), saved(tmp_path / "other", ran(case("openvino")))
    both = load_records(one, path)
    assert (len(load_records(one)), len(load_records(str(one))), len(both)) == (5, 5, 10)
    assert both == load_records([one, str(path)]) == load_records([one], path) == load_records(tmp_path)
    assert set(both.folders) == {record.id for record in both}
    assert both.fastest.case == case("openvino") or both.fastest.case == case()
    refusal("does not exist", load_records, one, tmp_path / "nowhere")
    refusal("no profile", load_profiles, str(one), path)


# What results print, and show in a notebook.

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
LONGEST = 300  # characters of a result in a line: three lines of a notebook


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One of each that the Python interface returns, from a hostile name or a recorded run."""
    sides = [record(case("<b>"), median=median, id=name) for name, median in (("a", 10e-3), ("b", 5e-3))]
    folder = stored(tmp_path_factory.mktemp("results"), sides)
    records, profiles = load_records(folder), loaded(eager(), fused())
    (trace,) = (EXAMPLES / "h200" / "traces" / "pytorch_bs1").glob("*.json*")
    opened = inferlens.load_trace(trace)
    tuned = load_tuning(EXAMPLES / "cpu" / "tuned" / "resnet18" / "tuning")
    return {
        "records": records, "many records": Records(cpu_records()), "record": records[0],
        "measurement": records[0].measurements[0], "environment": records[0].environment, "row": records.rows[0],
        "profiles": profiles, "profile": profiles[0], "layers": profiles[0].layers,
        "findings": inferlens.findings(profiles[0]), "finding": inferlens.findings(profiles[0])[0],
        "comparison": inferlens.compare(folder / "0", folder / "1"), "trace": opened, "overview": opened.overview(),
        "advice": opened.advice(), "tuned": tuned, "quantization": made(3, 1, 1), "no profiles": LoadedProfiles(),
    }  # fmt: skip


def test_a_result_is_a_line_of_text_and_a_view_in_a_notebook(results):
    for name, result in results.items():
        assert (len(repr(result)) <= LONGEST, "\n" in repr(result)) == (True, False), name
        shown = result._repr_html_()
        assert ("<script" in shown, "<b>b</b>" in shown) == (False, False), name
        assert name == "no profiles" or "<table>" in shown, name
    assert str(results["comparison"]).splitlines()[0]
    assert "traced steps" in str(results["trace"])
    assert str(results["measurement"]) == repr(results["measurement"])


def test_profiles_are_a_sequence(results):
    profiles = results["profiles"]
    assert list(profiles) == profiles.profiles
    assert repr(profiles) == "<2 profiles of torchvision:resnet18, 2 ran>"
    assert "Try: " in str(profiles)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_looks_right_in_jupyterlab(theme, results, browser, tmp_path):
    nbconvert = pytest.importorskip("nbconvert", reason="nbconvert is not there")
    nbformat = pytest.importorskip("nbformat", reason="nbconvert is not there")
    cells = []
    for name, result in results.items():
        data = {"text/plain": repr(result), "text/html": result._repr_html_()}
        output = nbformat.v4.new_output("execute_result", data=data, execution_count=1)
        cells.append(nbformat.v4.new_code_cell(name, outputs=[output], execution_count=1))
    exporter = nbconvert.HTMLExporter(theme=theme)
    page, _ = exporter.from_notebook_node(nbformat.v4.new_notebook(cells=cells))
    (tmp_path / "notebook.html").write_text(page)
    tab = browser.new_page(viewport={"width": 1200, "height": 900})
    tab.route("http*://**", lambda route: route.abort())  # what nbconvert's page loads is of no use here
    tab.goto((tmp_path / "notebook.html").as_uri(), wait_until="domcontentloaded")

    def looks(selector: str, style: str) -> set[str]:
        found = f"[...document.querySelectorAll('.inferlens {selector}')].map(each => getComputedStyle(each).{style})"
        return set(tab.evaluate(found))

    assert looks("td.number", "textAlign") == {"right"}
    assert looks("th.name, td:not(.number)", "textAlign") <= {"left", ""}
    (ink,) = looks("th.name", "color")
    assert (sum(map(float, re.findall(r"[\d.]+", ink)[:3])) > 384) == (theme == "dark")
    assert max(float(size.removesuffix("px")) for size in looks("h4", "fontSize")) <= 20
    wide = "document.querySelectorAll('.inferlens').length && document.documentElement.scrollWidth <= innerWidth"
    assert tab.evaluate(wide)
    tab.screenshot(path=tmp_path / "notebook.png", full_page=True)
    tab.close()
