"""What people see: every command that reads files says what it has to say on one screen, of every folder in examples.

A screen is 24 lines of 100 columns, with what goes to standard error. Rows beyond it are for those who ask for them.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

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
OF_RECORDS = ("show {}", "show --view notes {}")
OF_SOME = ("show --plot chart.svg {}", "compare {0} {0}")
OF_PROFILES = (
    "show --view findings {}", "modules {}", "layers {}", "kernels {}", "roofline {}", "graph --output graph.html {}",
)  # fmt: skip
TRACES = EXAMPLES / "h200" / "traces"
RUNS = ("ttrt_fp16_bs32", "pytorch_bs32")


def folders(pattern: str) -> tuple[list[Path], list[Path]]:
    """Return every model's folder with such files, the examples themselves first, and a case of every third."""
    first: dict[Path, Path] = {EXAMPLES: EXAMPLES}
    for file in sorted(EXAMPLES.rglob(pattern)):
        first.setdefault(file.parent.parent, file.parent)
    return [*first], [*first.values()][1::3]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose paths are as long as a user's. How a picture looks is no matter of the screen."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "examples").symlink_to(EXAMPLES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture, "converter", lambda: SimpleNamespace(vegalite_to_svg=lambda _: "<svg/>"))
        yield folder


def lines() -> Iterator[str]:
    """Yield command lines."""
    (models, cases), (profiled, profiled_cases) = map(folders, ("record.json*", "profile-*.json*"))
    places = ((OF_RECORDS, [*models, *cases]), (OF_SOME, models[::3]), (OF_PROFILES, [*profiled, *profiled_cases]))
    for command, folder in itertools.chain.from_iterable(itertools.product(*place) for place in places):
        yield command.format(folder.relative_to(ROOT))
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
def test_default_output_is_one_screen(line, checkout):
    done = inferlens(*line.split(), cwd=checkout)
    assert done.returncode in (0, 1, 2, 3, 4)
    assert "Traceback" not in done.stderr
    printed, remarks = done.stdout.splitlines(), done.stderr.splitlines()
    assert printed or remarks
    assert not [text for text in printed if cell_len(text) > COLUMNS]
    count = len(printed) + sum(-(-cell_len(text) // COLUMNS) for text in remarks)  # which a terminal folds
    assert count <= LINES, f"{count} lines\n{done.stdout}{done.stderr}"
    assert not NOTE_MARKS.search(done.stdout + done.stderr)
    assert not line.startswith("show") or "notes RESULTS" not in done.stdout, "a command to be pasted as it is"
