"""Documents, help texts and code, checked against each other; what the documents say to do is done."""

import functools
import itertools
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import typer

import inferlens
from inferlens import load_records
from inferlens.backends import BACKENDS
from inferlens.backends.base import TOLERANCES
from inferlens.backends.clocks import NVTX_VARIABLE
from inferlens.cli.backends import option_rows
from inferlens.cli.commands import app
from inferlens.execution.tuning.space import search_selection
from inferlens.measure import series
from inferlens.models.resolve import BY_PREFIX
from inferlens.record.record import Metric, PhaseName, Record, Status
from inferlens.registry import Registry
from inferlens.spec.case import MAX_TIME, Budget
from inferlens.spec.objective import MEASURES, Constraint, Objective
from inferlens.spec.plan import BUDGET_WORDS, OPTIONS, RACE_WORDS, WORDS, Plan, read_plan
from inferlens.units import parse_duration, parse_share
from tests.commands import inferlens as in_this_process
from tests.views.samples import sample_records

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.usefixtures("examples_read_once")
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MADE = ("command-line.md", "python.md", "measured-on-an-h200.html")  # by `make docs`, and not kept
WRITTEN = sorted(path for path in DOCS.rglob("*.md") if path.name not in MADE)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *WRITTEN]
# What a block of commands needs. The second is also for what reads files of the reader's.
ANYWHERE, MARKS = "runs anywhere", ("runs anywhere", "takes minutes", "needs a GPU")
GROUP = typer.main.get_command(app)
COMMANDS = {name: GROUP.get_command(None, name) for name in GROUP.list_commands(None)}
OTHERS_OPTIONS = {
    "--editable", "--logdir",  # of pip, of TensorBoard
    "--rm", "--gpus", "--user",  # of podman and Docker
    "--data-binary",  # of curl
    "--trace", "--report", "--target-processes", "--nvtx-include", "--kernel-name", "--launch-count", "--launch-skip",
    "--set", "--export", "--import", "--page", "--clock-control", "--cache-control",  # of nsys and ncu
}  # fmt: skip
OPTION = re.compile(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*(?![\w-])")
BENCHMARK = re.compile(r"python -m benchmarks[. ](\w+)([^`\n]*)")
# Sources whose prefix a user need not know.
NOT_WRITTEN = {"factory", "onnx", "file", "engine", "openvino", "torch_tensorrt", "live"}
FORBIDDEN_WORDS = r"managers?|helpers?|utils|handlers?|sessions?|agents?"
# Put together here, so that this file does not contain them.
FORBIDDEN_EVERYWHERE = ["/" + "work/", "py" + "pi.org", "python" + "hosted.org", "/" + "root/"]


@functools.cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def called(path: Path) -> str:
    """A page's name in its folder of documents: two folders may have one of the same name."""
    return str(path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT))


def blocks(path: Path, language: str, mark: str = "") -> list[str]:
    """Code blocks of a language, those with this mark alone if there is one."""
    wanted = rf' title="{mark}"' if mark else r"(?: [^\n]*)?"
    return re.findall(rf"^```{language}{wanted}\n(.*?)^```", text(path), re.M | re.S)


def lines_of(block: str) -> list[str]:
    """The commands of a block, those of several lines as one."""
    return re.sub(r"\\\n\s*", "", block).splitlines()


def section(path: Path, title: str) -> str:
    """What stands under a heading, down to the next one of any level."""
    match = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", text(path), re.M | re.S)
    assert match, f"{path.name} has no section '{title}'"
    return match[1]


def table_rows(body: str) -> list[list[str]]:
    """Cells of the tables in a text, headers and rules left out."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in body.splitlines() if line[:1] == "|"]
    heads = {index + offset for index, row in enumerate(rows) if row[0].startswith("-") for offset in (-1, 0)}
    return [row for index, row in enumerate(rows) if index not in heads]


def names_in(body: str) -> set[str]:
    """Names in the first column of a section's tables, without their backticks."""
    return {name for row in table_rows(body) for name in re.findall(r"`([^`]+)`", row[0])}


def commands() -> Iterator[str]:
    """Every ``inferlens`` command in a bash block or between backticks, once."""
    lines: dict[str, None] = {}
    for path in PAGES:
        for block in blocks(path, "bash"):
            lines |= dict.fromkeys(lines_of(block))
        prose = re.sub(r"^```.*?^```", "", text(path), flags=re.M | re.S)
        lines |= dict.fromkeys(re.findall(r"`(inferlens [^`]+)`", prose))
    yield from (line for line in lines if line.startswith("inferlens "))


# What is written exists, and what exists is written


def test_every_option_of_every_command_is_documented():
    written = "\n".join(map(text, PAGES))
    for name, command in {**COMMANDS, "inferlens": GROUP}.items():
        assert name == "inferlens" or f"inferlens {name}" in written
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("-"):
                    assert re.search(rf"(?<![\w-]){option}(?![\w-])", written), f"{name} {option}"


@pytest.mark.parametrize("path", PAGES, ids=called)
def test_every_option_written_exists(path):
    known = {option for command in (GROUP, *COMMANDS.values()) for each in command.params for option in each.opts}
    written = OPTION.findall(BENCHMARK.sub("", text(path)))
    assert set(written) <= known | {"--help"} | OTHERS_OPTIONS
    for name, arguments in BENCHMARK.findall(text(path)):
        source = text(ROOT / "benchmarks" / f"{name}.py")
        assert set(OPTION.findall(arguments)) <= set(OPTION.findall(source)), name


@pytest.mark.parametrize("line", commands())
def test_every_command_written_parses(line, monkeypatch):
    monkeypatch.setenv(NVTX_VARIABLE, "")  # which --nvtx sets when it is parsed
    name, *arguments = shlex.split(line, comments=True)[1:]
    if name.startswith("-"):
        assert name in ("--version", "--help")
        return
    assert name in COMMANDS, line
    if not arguments or arguments[-1] == "--help":  # the command's name, in a sentence
        return
    context = COMMANDS[name].make_context(name, list(arguments))
    if name == "bench" and not any(word.endswith(".toml") or word == "MODEL..." for word in arguments):
        words = {word: value for word, value in context.params.items() if word in WORDS and value is not None}
        read_plan(words.pop("model"), words)


def test_every_command_and_parameter_has_a_help_that_says_what_the_code_does():
    assert f"{Budget().warmup_seconds:g} s at least" in OPTIONS["warmup"].help
    for command in COMMANDS.values():
        assert command.help
        for parameter in command.params:
            assert getattr(parameter, "help", "") or parameter.name == "name"


def test_the_budget_is_documented_as_it_is():
    said = section(DOCS / "bench.md", "How much measuring")
    rows = {row[0].strip("`"): row[2] for row in table_rows(said)}
    budget = Budget()
    assert set(rows) == {"--" + word.replace("_", "-") for word in (*BUDGET_WORDS, *RACE_WORDS)}
    assert parse_duration(rows["--within"].split("`")[1]) == Plan(model=("x",)).within
    assert parse_share(rows["--threshold"].strip("`")) == budget.threshold
    assert f"{series.LEAST_SAMPLES} to {series.MOST_SAMPLES:,} samples" in said
    assert parse_duration(rows["--max-time"].strip("`")) == MAX_TIME
    assert parse_duration(rows["--timeout"].strip("`")) == budget.timeout
    assert parse_share(rows["--half-width"].strip("`")) == budget.half_width


def test_backends_are_documented_with_their_variants():
    rows = table_rows(text(DOCS / "backends.md").partition("\n## ")[0])
    written = {re.findall(r"`(\w+)`", row[0])[0]: tuple(re.findall(r"`([\w-]+)`", row[1])) or ("",) for row in rows}
    assert written == {name: BACKENDS.get(name).variants for name in written}
    ours = {name for name in BACKENDS.names() if BACKENDS.get(name).__module__.startswith("inferlens.")}
    assert set(written) == ours


def test_every_option_of_a_backend_is_documented_with_its_default():
    written = {}
    for name in re.findall(r"^## (\w+)$", text(DOCS / "backends.md"), re.M):
        for option, values, default, description in table_rows(section(DOCS / "backends.md", name)):
            written[option.strip("`")] = (values.replace("`", "").replace(", ", "|"), default.strip("`"), description)
    known = {
        f"{name}.{option}": (values, default, description)
        for name in names_in(text(DOCS / "backends.md").partition("\n## ")[0])
        if name in BACKENDS.names()
        for option, values, default, description in option_rows(BACKENDS.get(name))
    }
    assert written == known


def test_recommended_ways_are_documented():
    rows = {row[0].strip("`"): row[1:] for row in table_rows(section(DOCS / "backends.md", "Recommended ways"))}
    for name in set(BACKENDS.names()) - {"fake"}:
        for place, device in enumerate(("cpu", "cuda")):
            ways = [one for one in BACKENDS.get(name).recommended if one.device == device]
            said = {word for one in ways for word in (one.variant, *one.options) if word}
            assert set(re.findall(r"`([^`]+)`", rows[name][place])) == said, (name, device)


@pytest.mark.parametrize(("title", "names"), [
    ("Status", set(typing.get_args(Status))), ("Phases", set(typing.get_args(PhaseName))),
    ("Measurements", set(typing.get_args(Metric))),
    ("The record", {field.encode_name for field in msgspec.structs.fields(Record)}),
])  # fmt: skip
def test_the_words_of_the_record_are_documented(title, names):
    assert names_in(section(DOCS / "record.md", title)) == names


def test_tolerances_are_documented():
    rows = [row for row in table_rows(section(DOCS / "record.md", "Agreement")) if len(row) == 3]
    assert {row[0].lower(): float(row[1]) for row in rows} == TOLERANCES


def test_public_names_and_words_of_a_plan_are_documented():
    written = text(DOCS / "bench.md")
    for name in inferlens.__all__:
        assert f"`inferlens.{name}" in written, name
    words = section(DOCS / "bench.md", "A plan file")
    assert set(re.findall(r"`(\w+)`", words)) >= {*WORDS}
    for prefix in set(BY_PREFIX) - NOT_WRITTEN:
        assert f"`{prefix}:" in section(DOCS / "bench.md", "Models")


def test_plan_files_written_are_plans():
    assert blocks(DOCS / "bench.md", "toml")
    for block in blocks(DOCS / "bench.md", "toml"):
        plan = Plan.from_words(tomllib.loads(block))
        for name, values in plan.option.items():
            backend, _, option = name.partition(".")
            known = {row[0]: row[1].split("|") for row in option_rows(BACKENDS.get(backend))}
            assert set(values) <= set(known[option])


def test_what_a_tuning_tries_and_aims_at_is_documented(tmp_path):
    page = DOCS / "tune.md"
    words = names_in(section(page, "What it aims at"))
    limits = {Constraint.parse(word).name for word in words if "=" in word}
    aims = {Objective.parse(word).name for word in words if "=" not in word}
    assert aims == {name for name, measure in MEASURES.items() if measure.aim}
    assert limits | aims == set(MEASURES)
    (file,) = blocks(page, "toml")
    (tmp_path / "space.toml").write_text(file)
    assert search_selection(tmp_path / "space.toml").precisions == {"fp16"}


def test_extras_exit_codes_and_make_targets_are_documented():
    extras = set(tomllib.loads(text(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]) - {"dev"}
    assert set(re.findall(r"pip install -e '\.\[([\w-]+)\]'", text(DOCS / "start.md"))) == extras
    codes = {row[0] for row in table_rows(section(DOCS / "bench.md", "Exit codes"))}
    assert codes == set(re.findall(r"\b\d+\b", sys.modules["inferlens.cli"].__doc__ or ""))
    targets = set(re.findall(r"^([\w-]+):", text(ROOT / "Makefile"), re.M))
    for path in PAGES:
        assert set(re.findall(r"(?:^|`)make ([\w-]+)", text(path), re.M)) <= targets


# Links, paths and words


@pytest.mark.parametrize("path", PAGES, ids=called)
def test_links_lead_somewhere(path):
    targets = re.findall(r"\]\(([^)]+)\)", text(path)) + re.findall(r"\bsrc(?:set)?=\"([^\"]+)\"", text(path))
    for target in targets:
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        found = path.parent / name if name else path
        assert found.exists() or found.name in MADE, target
        assert not anchor or anchor in anchors(found), target


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", text(path), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_site_builds_with_every_page_in_it(tmp_path):
    pytest.importorskip("zensical", reason="zensical is not there")
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for path, made in runpy.run_path(str(DOCS / "reference.py"))["PAGES"].items():
        (tmp_path / "docs" / path.name).write_text(made())
    (tmp_path / "docs" / MADE[-1]).write_text("the page of all records, which takes a minute")
    listed = set(re.findall(r"[\w/-]+\.md", text(ROOT / "mkdocs.yml")))
    assert listed == {str(path.relative_to(tmp_path / "docs")) for path in (tmp_path / "docs").rglob("*.md")}
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "mkdocs.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").exists()


@pytest.mark.parametrize("path", PAGES, ids=called)
def test_files_written_exist_and_pages_use_our_words(path):
    for name in re.findall(r"`((?:src|tests|docs|benchmarks)/[\w./-]+)`", text(path)):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`((?:backends|views|models)/\w+\.py)`", text(path)):
        assert (ROOT / "src" / "inferlens" / name).exists(), name
    prose = re.sub(r"^```.*?^```", "", text(path), flags=re.M | re.S)
    assert not re.findall(rf"\b(?:{FORBIDDEN_WORDS})\b", prose, re.I)
    assert not re.findall(r"\bissues? #?\d+", prose, re.I)
    assert "/tmp" not in text(path)


@pytest.mark.parametrize("path", [DOCS / "architecture.md", ROOT / "CONTRIBUTING.md"], ids=called)
def test_files_and_names_of_the_code_exist(path):
    prose = re.sub(r"^```.*?^```", "", text(path), flags=re.M | re.S)
    for name in re.findall(r"`(?:\w+ )*([\w./-]+(?:\.py|/))`", prose):
        assert (ROOT / name).exists() or sources(name), name
    for name in re.findall(r"`(_?[A-Z]{2}[A-Z_]*)`", prose):
        assert any(defines(source, name) for source in sources(".py")), name
    for name, file in re.findall(r"`(?:\w+\.)?(\w+)`\s+(?:in|of)\s+`([\w./]+\.py)`", prose):
        assert any(defines(source, name) for source in sources(file)), f"{name} in {file}"


@functools.cache
def sources(name: str) -> list[Path]:
    """Return the files and folders of the package whose path ends with a name; of ``.py`` all modules."""
    end = name if name == ".py" else "/" + name.rstrip("/")
    return [source for source in (ROOT / "src" / "inferlens").rglob("*") if source.as_posix().endswith(end)]


def defines(source: Path, name: str) -> bool:
    """Return whether a file defines a function, a class, a constant or a field of a name."""
    return bool(re.search(rf"^\s*(?:(?:def|class) {name}\b|{name}(?:: | = ))", text(source), re.M))


def test_the_repository_speaks_of_the_project_alone():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout")
    for name in listed.stdout.splitlines():
        try:
            content = text(ROOT / name)
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        assert not [word for word in FORBIDDEN_EVERYWHERE if word in content], name


# What the documents say to do is done


@pytest.mark.parametrize("path", [ROOT / "README.md", *WRITTEN], ids=called)
def test_every_command_is_run_or_marked(path):
    assert re.findall(r"^```bash(.*)$", text(path), re.M) == [f' title="{mark}"' for mark in marks(path)]
    prose = re.sub(r"^```.*?^```", "", text(path), flags=re.M | re.S)
    assert not re.findall(r"^(?: {4}|\t)inferlens ", prose, re.M), "a block of commands begins with ```bash"


def marks(path: Path) -> list[str]:
    """The marks of a page's blocks of commands that have a known one."""
    return re.findall(rf'^```bash title="({"|".join(MARKS)})"$', text(path), re.M)


@pytest.mark.parametrize("path", [DOCS / "bench.md", DOCS / "start.md"], ids=called)
def test_python_blocks_run(path, tmp_path, monkeypatch, one_process):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert blocks(path, "python")
    for block in blocks(path, "python"):
        exec(compile(block, called(path), "exec"), {})


@pytest.mark.parametrize(
    "path", [page for page in (ROOT / "README.md", *WRITTEN) if ANYWHERE in marks(page)], ids=called
)
def test_commands_that_run_anywhere_run(path, tmp_path, undrawn):
    """In one folder, as in a checkout, with the files that the page shows. What the page prints was run for that."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name, body in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", text(path), re.M | re.S):
        pytest.importorskip("torch")
        (tmp_path / name).write_text(body, encoding="utf-8")
    printed = re.findall(r"^<!-- \$ (inferlens .*) -->$", text(path), re.M)
    for line in itertools.chain.from_iterable(map(lines_of, blocks(path, "bash", ANYWHERE))):
        name, *arguments = shlex.split(line, comments=True)
        assert name == "inferlens"
        if shlex.join([name, *arguments]) in printed:
            continue
        fewer = shlex.split(re.sub(r"--iterations \d+", "--iterations 5", shlex.join(arguments)))
        done = in_this_process(*fewer, cwd=tmp_path)
        decided = (0, 3) if arguments[0] == "compare" else (0,)  # undecided on a loud machine
        assert done.returncode in decided, f"{line}\n{done.stderr}"
        assert done.stdout or done.stderr


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package of ``add-a-backend.md``, where this process finds it: its files, and what an installer writes."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("package")
    files = re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", text(DOCS / "add-a-backend.md"), re.M | re.S)
    for name, body in files:
        (folder / name).write_text(body, encoding="utf-8")
    project = tomllib.loads(text(folder / "pyproject.toml"))["project"]
    installed = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    installed.mkdir()
    about = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (installed / "METADATA").write_text(about)
    ((group, points),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(vars(BACKENDS), "_points", Registry(BACKENDS.group, BACKENDS.kind)._points)
    return folder


def test_the_backend_of_the_guide_runs_and_is_right(installed, tmp_path):
    (tmp_path / "tiny.py").write_text(
        "import torch\n\ndef build():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU()), torch.randn(2, 16)\n"
    )
    options = ["--option", "torch_export.core=true", "--iterations", "20", "--warmup", "2"]
    done = in_this_process("bench", "tiny:build", "-b", "torch_export", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (record,) = load_records([tmp_path / "results"]).records
    assert record.case.backend == "torch_export"
    assert record.agreement is not None
    assert record.agreement.agrees
    assert record.facts["graph nodes"]
    assert len(text(installed / "inferlens_torch_export.py").splitlines()) < 60


class Outcomes:
    """A plugin that keeps how each test of a run within this one ended."""

    def __init__(self) -> None:
        self.by_test: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.by_test[report.nodeid] = report.longreprtext or report.outcome


def test_the_backend_of_the_guide_keeps_the_contract(installed, tmp_path):
    """The line that the guide adds, and the tests of the contract that take no time."""
    suite = text(ROOT / "tests" / "backends" / "test_contract.py")
    (line,) = re.findall(r"^\+(.+)$", "".join(blocks(DOCS / "add-a-backend.md", "diff")), re.M)
    assert suite.count("\nREAL = (\n") == 1
    contract, outcomes = tmp_path / "test_contract_of_the_guide.py", Outcomes()
    contract.write_text(suite.replace("\nREAL = (\n", f"\nREAL = (\n{line}\n"))
    shutil.copy(ROOT / "tests" / "backends" / "conftest.py", tmp_path)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(tmp_path)]
    pytest.main([str(contract), *options, "-k", "torch_export and not memory"], plugins=[outcomes])
    assert len(outcomes.by_test) > 5
    assert set(outcomes.by_test.values()) == {"passed"}, outcomes.by_test


def test_the_view_of_the_guide_draws(tmp_path, monkeypatch):
    source, *_ = blocks(DOCS / "add-a-view.md", "python")
    (tmp_path / "inferlens_slowest.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    from inferlens_slowest import Slowest

    drawn = Slowest().render(sample_records())
    assert len(drawn.splitlines()) > 1


# The Containerfile as far as it can be read without a registry


def test_it_starts_from_the_cuda_runtime_and_ends_as_backends_of_a_plain_user():
    lines = [line for line in (ROOT / "Containerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()
    instructions = [(name, rest) for name, _, rest in (line.partition(" ") for line in joined if line.strip())]
    names = [name for name, _ in instructions]
    assert set(names) <= {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}
    assert names[:2] == ["ARG", "FROM"]
    assert re.search(r"nvidia/cuda:[\d.]+-cudnn-runtime-", instructions[0][1])
    assert instructions[-2:] == [("ENTRYPOINT", '["inferlens"]'), ("CMD", '["backends"]')]
    assert names.index("USER") < len(names) - 3
    assert "inferlens backends --wide" in dict(instructions[-3:]).get("RUN", "")
    ignored = (ROOT / ".containerignore").read_text().splitlines()
    for name, rest in instructions:
        if name == "RUN":
            assert shlex.split(rest)
            assert "driver" not in rest, "it is the host's"
        if name == "COPY":
            assert all((ROOT / source).exists() and f"!{source}" in ignored for source in rest.split()[:-1])
    extras = next(rest.partition("=")[2].split(",") for _, rest in instructions if rest.startswith("EXTRAS="))
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras)
