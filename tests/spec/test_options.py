"""An option is declared once, for the command line, the Python function and the plan file."""

import inspect
import math
from typing import Annotated

import msgspec
import pytest
import typer

import inferlens
from inferlens.cli.commands import app
from inferlens.spec.commands import OWN, TuneOptions, options_of
from inferlens.spec.objective import MEASURES, SHORT, Constraint, Objective
from inferlens.spec.options import DURATION, SHARE, OptionSpec, option_fields
from inferlens.spec.plan import FILE_ALONE, OPTIONS, WORDS, Plan
from tests.refusals import refusal

COMMANDS = typer.main.get_command(app)
IN_PYTHON = {"bench": inferlens.bench, "tune": inferlens.tune, "profile": inferlens.profile, "ab": inferlens.ab,
             "quantize": inferlens.quantize}  # fmt: skip


@pytest.mark.parametrize("name", ["bench", *OWN])
def test_the_command_line_and_python_have_the_declared_names_helps_and_defaults(name):
    parameters = {parameter.name: parameter for parameter in COMMANDS.get_command(None, name).params}
    keywords = inspect.signature(IN_PYTHON[name]).parameters if name in IN_PYTHON else {}
    docstring = " ".join((inspect.getdoc(IN_PYTHON[name]) or "").split()) if name in IN_PYTHON else ""
    for field in options_of(name).values():
        parameter = parameters[field.name]
        assert (set(field.names) <= set(parameter.opts), parameter.help) == (True, field.help)
        default = field.keyword_default
        assert parameter.show_default == (str(default) if default not in (None, False) else False)
        if keywords:
            assert keywords[field.name].default == default
            assert f"{field.name}: {field.help}" in docstring


def test_a_plan_file_has_the_options_of_bench_and_a_few_of_its_own():
    alone = {name for name in WORDS if OPTIONS[name].option.commands == FILE_ALONE}
    assert set(options_of("bench")) | {"model"} | alone == WORDS
    assert Plan.from_words({"model": "m"}) == Plan(model=("m",))


def test_the_help_names_every_aim():
    aims = {name for name, measure in MEASURES.items() if measure.aim}
    assert all(aim in option_fields(TuneOptions)["objective"].help for aim in aims)


def test_one_declaration_is_a_name_a_type_a_unit_a_help_and_a_default():
    class Options(msgspec.Struct):
        half_width: Annotated[float, OptionSpec("How wide.", unit=SHARE)] = 0.01
        pause: Annotated[float, OptionSpec("How long.", unit=DURATION, positive=True)] = 5400.0
        sizes: Annotated[tuple[int, ...], OptionSpec("How many.", default="all")] = ()
        again: Annotated[bool, OptionSpec("Whether again.")] = False

    fields = option_fields(Options)
    assert fields["half_width"].names == ("--half-width",)
    assert [fields[name].shown_default for name in ("half_width", "pause", "sizes")] == ["1%", "90m", "all"]
    values = {"half_width": "2.5%", "pause": "2m", "sizes": "1,8", "again": True}
    assert [fields[name].read(value) for name, value in values.items()] == [0.025, 120.0, (1, 8), True]
    for name, value in (("half_width", "0"), ("pause", "0"), ("sizes", "0"), ("again", "yes")):
        refusal("", fields[name].read, value)


def test_a_keyword_that_there_is_not_suggests_one():
    assert "threads" in refusal("", inferlens.bench, "fake:demo", thread=1).hint


# What a tuning aims at and its limits: words become data, and what means nothing is said.


@pytest.mark.parametrize(("word", "name"), [
    ("latency", "latency"), ("latency.p50", "latency"), ("latency.p95", "latency.p95"), ("p99", "latency.p99"),
    ("throughput", "throughput"), ("energy", "energy"), (" memory ", "memory"),
])  # fmt: skip
def test_an_objective_is_a_word(word, name):
    assert Objective.parse(word) == Objective(name)
    assert Objective(name).measure is MEASURES[name]


@pytest.mark.parametrize(("text", "name", "limit"), [
    ("error=1e-2", "error", 0.01), ("error=1%", "error", 0.01), ("memory=2GiB", "memory", 2 * 2**30),
    ("memory=500MB", "memory", 5e8), ("build=10m", "build", 600.0), ("p99=5ms", "latency.p99", 0.005),
    (" latency.p95 = 200us ", "latency.p95", 0.0002), ("latency=4ms", "latency", 0.004), ("energy=0.5J", "energy", 0.5),
    ("energy=20mJ", "energy", 0.02), ("throughput=1000", "throughput", 1000.0),
])  # fmt: skip
def test_a_constraint_is_a_measure_and_its_limit(text, name, limit):
    constraint = Constraint.parse(text)
    assert (constraint.name, constraint.limit) == (name, pytest.approx(limit))


@pytest.mark.parametrize(("text", "message"), [
    ("eror=1", "no constraint 'eror'.*did you mean error"), ("error", "has no limit.*error=1e-2"),
    ("error=2", "'2' is not a relative error"), ("error=", "is not a valid relative error"),
    ("error=0", "Nothing keeps a limit of 0 for error"), ("memory=2", "is not a valid size of memory.*2GiB"),
    ("memory=-2GiB", "is not a valid size of memory"), ("energy=5", "is not a valid energy.*2J"),
    ("p99=fast", "is not a duration"), ("throughput=1e99999", "is not a valid rate"),
    ("accuracy-drop=3", "is not a percentage"),
])  # fmt: skip
def test_what_limits_nothing_is_refused(text, message):
    refusal(message, Constraint.parse, text)


def test_one_limit_for_each_measure():
    assert [constraint.name for constraint in Constraint.parse_all(["error=1%", "p99=5ms"])] == ["error", "latency.p99"]
    refusal(r"limit of latency\.p99 is given twice", Constraint.parse_all, ["p99=5ms", "latency.p99=6ms"])


def test_how_far_a_value_is_beyond_its_limit():
    at_most, at_least = Constraint("latency", 0.004), Constraint("throughput", 100.0)
    assert [at_most.factor(value) for value in (0.002, 0.004, 0.006)] == pytest.approx([0.5, 1, 1.5])
    assert [at_least.factor(value) for value in (200.0, 100.0, 50.0)] == pytest.approx([0.5, 1, 2])
    assert [at_least.factor(0.0), at_most.factor(None), at_least.factor(None)] == [math.inf] * 3
    assert (str(at_most), str(at_least)) == ("median latency at most 4.00 ms", "throughput at least 100 items/s")


@pytest.mark.parametrize("measure", MEASURES.values(), ids=lambda measure: measure.name)
def test_the_form_that_is_shown_is_one_that_is_read(measure):
    name, title, _, show, read, form, *_ = measure
    word, _, limit = form.partition("=")
    assert SHORT.get(word, word) == name
    assert read(limit) > 0
    assert show(read(limit)) != show(None) == "–"
    assert title
