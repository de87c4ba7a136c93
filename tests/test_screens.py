"""What people see: every command that reads files says what it has to say on one screen, of every folder in examples.

A screen is 24 lines of 100 columns, with what goes to standard error. Rows beyond it are for those who ask for them.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

from inferlens.views import picture
from inferlens.views.trace import COMPARED, VIEWS
from tests.commands import inferlens
from tests.trace.samples import SHARED

pytestmark = pytest.mark.usefixtures("examples_read_once")
ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
LINES, COLUMNS = 24, 100
NOTE_MARKS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹]")
OF_RECORDS = ("show", "show --view notes", "show --plot chart.svg", "compare {} {}")
OF_PROFILES = ("show --view findings", "modules", "layers", "kernels", "roofline", "graph --output graph.html")
TRACES = EXAMPLES / "h200" / "traces"
RUNS = ("ttrt_fp16_bs32", "pytorch_bs32")


def folders(pattern: str) -> list[Path]:
    """Examples themselves, and in them every model's folder with such files, and one of its cases."""
    cases: dict[Path, Path] = {}
    for file in sorted(EXAMPLES.rglob(pattern)):
        cases.setdefault(file.parent.parent, file.parent)
    return [EXAMPLES, *cases, *cases.values()]


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a picture looks like is no matter of the screen."""
    monkeypatch.setattr(picture, "draw_chart", lambda *_, **__: "<svg/>")


def lines() -> Iterator[str]:
    """Command lines."""
    for commands, pattern in ((OF_RECORDS, "record.json*"), (OF_PROFILES, "profile-*.json*")):
        for command in commands:
            for folder in folders(pattern):
                path = folder.relative_to(ROOT)
                yield command.format(path, path) if "{}" in command else f"{command} {path}"
    for model in sorted({file.parents[2] for file in EXAMPLES.rglob("trials.jsonl*")}):
        yield f"show {model.relative_to(ROOT)}"
    for view in VIEWS:
        for path in (TRACES, *(TRACES / name for name in RUNS)):
            yield f"trace --view {view} {path.relative_to(ROOT)}"
        yield from (f"trace --view {view} {path}" for path in (SHARED, *sorted(SHARED.glob("*.gz"))) if path.exists())
    yield from (f"trace {path.relative_to(ROOT)}" for path in sorted(TRACES.rglob("*.gz")))
    for view in COMPARED:
        yield "trace --view {} {} --against {}".format(view, *(TRACES.relative_to(ROOT) / name for name in RUNS))


@pytest.mark.parametrize("line", lines())
def test_default_output_is_one_screen(line, tmp_path):
    (tmp_path / "examples").symlink_to(EXAMPLES)  # so that what is printed has no longer paths than a user's
    done = inferlens(*line.split(), cwd=tmp_path)
    assert done.returncode in (0, 1, 2, 3, 4)
    assert "Traceback" not in done.stderr
    printed, remarks = done.stdout.splitlines(), done.stderr.splitlines()
    assert printed or remarks
    assert not [text for text in printed if cell_len(text) > COLUMNS]
    count = len(printed) + sum(-(-cell_len(text) // COLUMNS) for text in remarks)  # which a terminal folds
    assert count <= LINES, f"{count} lines\n{done.stdout}{done.stderr}"
    assert not NOTE_MARKS.search(done.stdout + done.stderr)
    assert not line.startswith("show") or "notes RESULTS" not in done.stdout, "a command to be pasted as it is"
