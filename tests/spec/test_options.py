"""An option is declared once, for the command line, the Python function and the plan file."""

import inspect
from typing import Annotated

import msgspec
import pytest
import typer

import inferlens
from inferlens.cli.commands import app
from inferlens.spec.commands import OWN, TuneOptions, options_of
from inferlens.spec.objective import MEASURES
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
