"""Outputs of today that a change of the code keeps: of commands that read files, and of functions for Python.

Each line of tests/golden/commands.txt is run in this process, and its output is compared with a file in
tests/golden/outputs; large ones are packed. ``python -m tests.test_golden`` writes the files again, and with words only
those whose names have one of them. Charts are not drawn: their words and values are compared. Of a command after
``keys:``, which measures, the keys of its JSON are compared, and what goes to standard error never is.

Every command that reads files also says what it has to say on one screen, of every folder in examples. The tables of
the documents come from there, too. All of this is one file of tests, so that one process reads the examples.
"""

import difflib
import html
import itertools
import lzma
import re
import runpy
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

import inferlens
from inferlens.views import picture
from inferlens.views.trace import COMPARED, VIEWS
from tests.commands import inferlens as run
from tests.trace.samples import SHARED

pytestmark = pytest.mark.usefixtures("examples_read_once")
ROOT = Path(__file__).parent.parent
EXAMPLES, GOLDEN, OUTPUTS = ROOT / "examples", ROOT / "tests" / "golden", ROOT / "tests" / "golden" / "outputs"
PACKED_FROM = 60_000  # bytes
LONG_NUMBER = re.compile(r"(?<![\w.])\d+\.\d{8,}(?:e[+-]?\d+)?(?!\w)")  # its last digits depend on the processor
RECORDS = (("record.json", "Record"), ("profile-*.json", "Profile"), ("trials.jsonl", "Record"))
# What records of the past have and records of today do not.
RETIRED = re.compile(
    r"\.(machine\.(costs|forgotten|governor|before\.idle_\w+|cpu\.(frequency_mean|frequency_min|memory_wait)"
    r"|gpu\.(memory_clock|power|power_basis|power_window))|(window_)?marks\.(repeat|why|unseen)|budget\.stop)"
)


def name_of(command: str) -> str:
    """Return the name of the file with the output of a command."""
    ending = re.search(r"\b(json|csv|md)$", command)
    name = re.sub(r"examples/|tests/[\w/]+/(?=\w)|--view overview,operators,kernels,modules,memory\S*", "", command)
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", re.sub(r"--json$|--format (?:json|csv)$|-o \S+$", "", name)).strip("-")
    return f"{name}.{ending[1] if ending else 'txt'}"


def output(command: str, folder: Path) -> str:
    """Return what a command prints, and what it writes to the file or folder that it names."""
    words = shlex.split(command.removeprefix("keys: "))
    done = run(*words, cwd=folder)
    assert "Traceback" not in done.stderr, done.stderr
    if command.startswith("keys: "):
        return "\n".join(sorted(set(re.findall(r'"([^"]+)":', done.stdout)))) + "\n"
    files = [folder / words[place + 1] for place, word in enumerate(words) if word in ("-o", "--plot", "--trace")]
    text = done.stdout + "".join(map(written, [*files, *sorted(folder.glob("*-pictures/*.svg"))]))
    return text if done.returncode == 0 else f"{text}exit code {done.returncode}\n"


def written(path: Path) -> str:
    """Return the text of a file, the words and values of a picture, or the names of the files in a folder."""
    if path.is_dir():
        return "".join(f"{file.relative_to(path)}\n" for file in sorted(path.rglob("*")))
    text = path.read_text("utf-8") if path.exists() else ""
    words = re.findall(r'aria-label="([^"]*)"|<text[^>]*>([^<]*)<', text)
    return text if path.suffix != ".svg" else "".join(f"{label or word}\n" for label, word in words)


def words_and_values(part: Any) -> Iterator[str]:
    """Yield the texts of a Vega-Lite document, and a text for each row of its data."""
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        if key == "values" and value and isinstance(value[0], dict):
            numbers = ({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in value)
            yield from ("; ".join(f"{name}: {item}" for name, item in row.items()) for row in numbers)
        elif key in ("text", "title", "subtitle") and isinstance(value, str | list):
            yield value if isinstance(value, str) else " ".join(value)
        elif isinstance(value, dict | list):
            yield from words_and_values(value)


def undrawn(chart: dict[str, Any]) -> str:
    return "".join(f"<text>{html.escape(text)}</text>" for text in words_and_values(chart))


def records() -> dict[str, Any]:
    loaded = inferlens.load_records(EXAMPLES / "cpu/quantized", EXAMPLES / "h200/five-ways")
    fastest = [[record.id for record in part.equally_fast] for part in loaded.comparisons]
    return {"answer": loaded.answer, "fastest": fastest, "table": loaded.to_polars().to_dicts()}


def trace() -> dict[str, Any]:
    loaded = inferlens.load_trace(next(EXAMPLES.glob("h200/traces/pytorch_bs1/*")))
    frames = [loaded.operators(), loaded.kernels(), loaded.modules(), loaded.memory(), loaded.steps()]
    return {"overview": loaded.overview(), "frames": [frame.to_dicts() for frame in frames]}


PYTHON = {
    "python-records.json": records,
    "python-compare.json": lambda: inferlens.compare(EXAMPLES / "h200/default", EXAMPLES / "h200/by-hand"),
    "python-findings.json": lambda: [*map(inferlens.findings, inferlens.load_profiles(EXAMPLES).profiles)],
    "python-trace.json": trace,
}
COMMANDS = {name_of(command): command for command in (GOLDEN / "commands.txt").read_text("utf-8").splitlines()}
NAMES = [*COMMANDS, *PYTHON]


def make(name: str) -> str:
    """Return the text of an output, without paths and digits of this machine."""
    with tempfile.TemporaryDirectory() as temporary, pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture, "converter", lambda: SimpleNamespace(vegalite_to_svg=undrawn))
        for link in ("examples", "tests"):
            (Path(temporary) / link).symlink_to(ROOT / link)
        if name in COMMANDS:
            text = output(COMMANDS[name], Path(temporary))
        else:
            text = msgspec.json.format(msgspec.json.encode(PYTHON[name](), enc_hook=str), indent=1).decode() + "\n"
    return LONG_NUMBER.sub(lambda number: f"{float(number[0]):.10g}", text.replace(str(ROOT), "ROOT"))


def read(path: Path) -> str:
    """Return the text of a file, packed or not; empty if there is none."""
    packed = path.with_name(f"{path.name}.xz")
    data = lzma.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes() if path.exists() else b""
    return data.decode()


@pytest.mark.parametrize("name", NAMES)
def test_output_is_as_stored(name):
    before, after = read(OUTPUTS / name).splitlines(), make(name).splitlines()
    if before != after:
        lines = list(difflib.unified_diff(before, after, "stored", "now", n=2, lineterm=""))
        pytest.fail("\n".join([COMMANDS.get(name, name), *lines[:60], f"{len(lines)} lines differ"]), pytrace=False)


@pytest.mark.parametrize(("pattern", "struct"), [*RECORDS, ("quantized-*.json", "Quantization")])
def test_stored_records_are_encoded_as_they_were(pattern, struct):
    for path in [file for folder in (EXAMPLES, GOLDEN) for file in folder.rglob(f"{pattern}*")]:
        text = read(path.with_name(path.name.removesuffix(".xz")))
        rounds = map(msgspec.json.decode, filter(None, text.split("\n")[1:] if "trials" in pattern else ()))
        for before in [record for one in rounds for record in one["records"]] or [msgspec.json.decode(text)]:
            record = msgspec.json.decode(msgspec.json.encode(before), type=getattr(inferlens, struct))
            missing = set(lost(before, msgspec.json.decode(msgspec.json.encode(record))))
            assert {place for place in missing if not RETIRED.fullmatch(place)} == set(), path


def lost(before: Any, after: Any, path: str = "") -> list[str]:
    """Return the paths of values that are not the same any more; new keys are allowed."""
    if before == after:
        return []
    if isinstance(before, dict) and isinstance(after, dict):
        parts = [(key, value, after.get(key, "?")) for key, value in before.items()]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        parts = [("[]", *pair) for pair in zip(before, after, strict=True)]
    else:
        return [path]
    return [place for key, old, new in parts for place in lost(old, new, f"{path}.{key}")]


# Screens: 24 lines of 100 columns, with what goes to standard error. Rows beyond it are for those who ask for them.

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
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose paths are as long as a user's."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "examples").symlink_to(EXAMPLES)
    return folder


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
def test_default_output_is_one_screen(line, checkout, undrawn):
    done = run(*line.split(), cwd=checkout)
    assert done.returncode in (0, 1, 2, 3, 4)
    assert "Traceback" not in done.stderr
    printed, remarks = done.stdout.splitlines(), done.stderr.splitlines()
    assert printed or remarks
    assert not [text for text in printed if cell_len(text) > COLUMNS]
    count = len(printed) + sum(-(-cell_len(text) // COLUMNS) for text in remarks)  # which a terminal folds
    assert count <= LINES, f"{count} lines\n{done.stdout}{done.stderr}"
    assert not NOTE_MARKS.search(done.stdout + done.stderr)
    assert not line.startswith("show") or "notes RESULTS" not in done.stdout, "a command to be pasted as it is"


def test_tables_are_made_from_the_records():
    tables = runpy.run_path(str(ROOT / "docs" / "tables.py"))
    for path in tables["PAGES"]:
        page = path.read_text(encoding="utf-8")
        assert tables["filled"](page) == page, "python docs/tables.py"
        assert len(tables["BLOCK"].findall(page)) == page.count("<!-- end -->") > 0


if __name__ == "__main__":
    OUTPUTS.mkdir(exist_ok=True)
    for name in NAMES:
        wanted = not sys.argv[1:] or any(word in name for word in sys.argv[1:])
        if wanted and (text := make(name)) != read(OUTPUTS / name):
            files = {False: OUTPUTS / name, True: OUTPUTS / f"{name}.xz"}
            packed = len(text) >= PACKED_FROM
            files[packed].write_bytes(lzma.compress(text.encode(), preset=9) if packed else text.encode())
            files[not packed].unlink(missing_ok=True)
            print(f"Wrote {name}")
    for path in [path for path in OUTPUTS.iterdir() if path.name.removesuffix(".xz") not in NAMES]:
        path.unlink()
