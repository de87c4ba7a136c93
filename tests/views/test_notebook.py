"""What comparisons, A/B tests and traces show in a notebook."""

from __future__ import annotations

from pathlib import Path

import inferlens
from inferlens.record.record import encode

from .samples import case, record

TRACE = Path(__file__).parent.parent.parent / "examples" / "h200" / "traces" / "pytorch_bs1"


def test_a_comparison_and_a_trace_show_their_tables(tmp_path: Path) -> None:
    for name, median in (("a", 10e-3), ("b", 5e-3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_bytes(encode(record(case("<b>"), median=median, id=name)))
    shown = inferlens.compare(tmp_path / "a", tmp_path / "b")._repr_html_()  # type: ignore[attr-defined]
    assert "<table>" in shown
    assert "&lt;b&gt;" in shown
    assert "<b>b</b>" not in shown
    (trace,) = TRACE.glob("*.json*")
    shown = inferlens.load_trace(trace)._repr_html_()  # type: ignore[attr-defined]
    assert "traced steps" in shown
    assert inferlens.ABResult._repr_html_  # type: ignore[attr-defined]
