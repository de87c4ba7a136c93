"""What results print, and show in a notebook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import inferlens
from inferlens import Records, load_records
from inferlens.analysis.tuning import load_tuning
from inferlens.record.record import encode
from inferlens.record.store import LoadedProfiles
from tests.analysis.profiles import eager, fused

from .profiled import loaded
from .samples import case, cpu_records, record
from .test_quantized import made

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
LONGEST = 300  # characters of a result in a line: three lines of a notebook


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One of each that the Python interface returns, from a hostile name or a recorded run."""
    folder = tmp_path_factory.mktemp("results")
    for name, median in (("a", 10e-3), ("b", 5e-3)):
        (folder / name).mkdir()
        (folder / name / "record.json").write_bytes(encode(record(case("<b>"), median=median, id=name)))
    records, profiles = load_records(folder), loaded(eager(), fused())
    (trace,) = (EXAMPLES / "h200" / "traces" / "pytorch_bs1").glob("*.json*")
    opened = inferlens.load_trace(trace)
    tuned = load_tuning(EXAMPLES / "cpu" / "tuned" / "resnet18" / "tuning")
    return {
        "records": records,
        "many records": Records(cpu_records()),
        "record": records[0],
        "measurement": records[0].measurements[0],
        "environment": records[0].environment,
        "row": records.rows[0],
        "profiles": profiles,
        "profile": profiles[0],
        "layers": profiles[0].layers,
        "findings": inferlens.findings(profiles[0]),
        "finding": inferlens.findings(profiles[0])[0],
        "comparison": inferlens.compare(folder / "a", folder / "b"),
        "trace": opened,
        "overview": opened.overview(),
        "advice": opened.advice(),
        "tuned": tuned,
        "quantization": made(3, 1, 1),
        "no profiles": LoadedProfiles(),
    }


def test_a_result_is_a_line_of_text_and_a_view_in_a_notebook(results: dict[str, Any]) -> None:
    for name, result in results.items():
        assert len(repr(result)) <= LONGEST, name
        assert "\n" not in repr(result), name
        shown = result._repr_html_()
        assert "<script" not in shown
        assert "<b>b</b>" not in shown
        assert name == "no profiles" or "<table>" in shown, name
    assert str(results["comparison"]).splitlines()[0]
    assert "traced steps" in str(results["trace"])
    assert str(results["measurement"]) == repr(results["measurement"])


def test_profiles_are_a_sequence(results: dict[str, Any]) -> None:
    profiles = results["profiles"]
    assert list(profiles) == profiles.profiles
    assert repr(profiles) == "<2 profiles of torchvision:resnet18, 2 ran>"
    assert "Try: " in str(profiles)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_looks_right_in_jupyterlab(theme: str, results: dict[str, Any], browser: Any, tmp_path: Path) -> None:
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
