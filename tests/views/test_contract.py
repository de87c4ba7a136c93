"""What every view keeps to, whatever stands in its names. A new view is one line in ``VIEWS``."""

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace
from rich.cells import cell_len

from inferlens.errors import Unsupported
from inferlens.record.store import LoadedProfiles
from inferlens.views.comparison import COMPARISON_FORMATS, render_comparison
from inferlens.views.crosstab import crosstab_document
from inferlens.views.partition import PartitionResult, partition_document
from inferlens.views.profiles.findings import findings_document, judge_cases
from inferlens.views.profiles.quantization import quantization_document
from inferlens.views.records import notes_document, records_document
from inferlens.views.renderers import render
from inferlens.views.table import FORMATS, Document, Table
from tests.analysis.profiles import NASTY, NASTY_PROFILES, eager, exact_layer, failed, fused, layered, other
from tests.cli.test_profiled import MIXED
from tests.views.profiled import document, loaded
from tests.views.samples import WRONG, case, failure, ran, record
from tests.views.test_comparison import NASTY as HOSTILE_NAME
from tests.views.test_comparison import hostile as hostile_comparison
from tests.views.test_quantization import made as quantization
from tests.views.test_records import SETS

STEERS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
PROFILES = (eager(), fused(), other(), failed(case("torchscript:trace"), "It <broke>."))
CASE = case(NASTY, model=NASTY, options={"a": NASTY})
RECORDS = [
    record(case(model=NASTY), rate=90.0), record(CASE, median=0.005, rate=200.0),
    record(replace(CASE, precision="int8"), agreement=replace(WRONG, reason=NASTY)),
    failure(case("openvino", model=NASTY), "failed", NASTY, NASTY), *SETS["hostile"],
]  # fmt: skip
PRECISIONS = [one for item in ("fp32", "int8") for one in ran(replace(CASE, precision=item))]


def judged() -> LoadedProfiles:
    """A profile with a finding about names that break out."""
    parts = [exact_layer(NASTY + "2", 5.0, "BatchNorm2d", NASTY), exact_layer(NASTY, 9.0, NASTY, NASTY)]
    return loaded(NASTY_PROFILES["layers"], layered(exact_layer("conv", 5.0), *parts, of=case("openvino")))


VIEWS: dict[str, Callable[[], Document]] = {
    "records": lambda: records_document(RECORDS), "notes": lambda: notes_document(RECORDS),
    "precisions": lambda: crosstab_document(PRECISIONS, "precision"),
    **{name: lambda name=name: document(name, loaded(NASTY_PROFILES[name], *PROFILES)) for name in NASTY_PROFILES},
    "findings": lambda: findings_document(judge_cases(judged()), whole=True),
    "partition": lambda: partition_document([PartitionResult(CASE, MIXED)], wide=True),
    "partitions": lambda: partition_document(
        [PartitionResult(replace(CASE, options={"a": text}), MIXED) for text in (NASTY, "b")], wide=True
    ),
    "failed partition": lambda: partition_document([PartitionResult(CASE, Unsupported(NASTY))]),
    "quantization": lambda: quantization_document(
        replace(quantization(3, 1, 1), case=CASE, not_run=NASTY), NASTY, "cpu"
    ),
}  # fmt: skip


def drawn(view: str, format: str = "table", **screen: Any) -> str:
    if view == "comparison":
        return render_comparison(hostile_comparison(), format, **screen)
    return render(VIEWS[view](), format, **screen)


FORMATS_OF = {**dict.fromkeys(VIEWS, FORMATS), "comparison": COMPARISON_FORMATS}


@pytest.mark.parametrize(("view", "format"), [(view, format) for view in FORMATS_OF for format in FORMATS_OF[view]])
def test_nothing_in_a_name_breaks_out_and_the_same_is_drawn_again(view, format, monkeypatch):
    text = drawn(view, format)
    for variable, value in (("COLUMNS", "40"), ("NO_COLOR", "1"), ("FORCE_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(variable, value)
    assert drawn(view, format) == text, "it reads nothing from its surroundings"
    assert text.endswith("\n")
    if format not in ("json", "csv"):
        assert not STEERS.search(text)
    if format == "json":
        assert isinstance(json.loads(text), dict)
    elif format == "csv":
        assert len({len(line) for line in csv.reader(io.StringIO(text))}) == 1
    elif format == "html":
        assert re.findall(r"<(script|img|b )", text) == ["script"]  # the page's own
    elif format == "markdown":
        check_markdown(text)


def check_markdown(text: str) -> None:
    """Tables stay tables, and names are only text."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    kinds = {token.type for token in [*tokens, *(child for token in tokens for child in token.children or [])]}
    assert not kinds & {"html_block", "html_inline", "link_open", "image"}
    for block in text.split("\n\n"):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines() if line.startswith("|")}
        assert len(widths) <= 1


@pytest.mark.parametrize("view", VIEWS)
def test_columns_have_keys_of_their_own(view):
    for table in (block for block in VIEWS[view]().blocks() if isinstance(block, Table)):
        keys = [column.key for column in table.columns]
        assert all(keys)
        assert len({*keys}) == len(keys)


@pytest.mark.parametrize("width", [20, 61, 120])
@pytest.mark.parametrize("view", FORMATS_OF)
def test_lines_keep_to_the_width(view, width):
    assert max(map(cell_len, drawn(view, width=width).splitlines())) <= max(width, 60)


@pytest.mark.parametrize("view", FORMATS_OF)
def test_names_are_as_they_are_for_programs(view):
    name = HOSTILE_NAME if view == "comparison" else NASTY
    assert repr(name)[1:-1] in str(json.loads(drawn(view, "json")))


def test_a_terminal_has_colours_if_asked():
    for view in ("layers", "modules", "kernels", "roofline"):
        assert "\x1b" in drawn(view, color=True), view
