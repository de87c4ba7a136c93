"""The functions of ``import inferlens`` that take the options of a command.

Their signatures and the options in their docstrings are made from the declarations in :mod:`inferlens.spec.commands`.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import inferlens.views.results  # noqa: F401 - print shows results as it says
from inferlens.errors import check_choice
from inferlens.spec.commands import options_of, own_options

if TYPE_CHECKING:
    from inferlens.analysis.ab_result import ABResult, ABSteps
    from inferlens.execution.deploy import Deployed
    from inferlens.execution.protocol import Observer
    from inferlens.record.builds import Quantization
    from inferlens.record.store import LoadedProfiles
    from inferlens.views.results import LoadTest, Records, Tuning

F = TypeVar("F", bound=Callable[..., Any])
WIDTH = 120


def takes(command: str, *left_out: str) -> Callable[[F], F]:
    """Give a function the options of a command, except ``left_out``, as keywords and in its docstring."""

    def decorate(function: F) -> F:
        fields = [field for name, field in options_of(command).items() if name not in left_out]
        declared = list(inspect.signature(function).parameters.values())
        keywords = [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.keyword_default)
            for field in fields
        ]
        before = [parameter for parameter in declared if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
        after = [parameter for parameter in declared if parameter.kind is parameter.KEYWORD_ONLY]
        function.__signature__ = inspect.Signature([*before, *keywords, *after])  # type: ignore[attr-defined]
        lines = [f"{field.name}: {field.help}" for field in fields]
        wrapped = (textwrap.fill(line, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8) for line in lines)
        function.__doc__ = f"{inspect.getdoc(function)}\n\nOptions:\n" + "\n".join(wrapped)
        return function

    return decorate


@takes("bench")
def bench(model: Any, example_inputs: Any = None, *, observer: Observer | None = None, **options: Any) -> Records:
    """Measure a model on the backends of this machine: ``print`` of the result shows the table.

    The options are those of ``inferlens bench``. A list stands for several values, and ``option`` may also be a dict,
    as ``{"backend.option": values}``.

    Args:
        model: a name, a file, a factory, or a live ``nn.Module``; a list of names for several models.
        example_inputs: for a live module: a tensor, a tuple of tensors, or a dict of tensors by argument name.
        observer: receives the progress; by default a terminal shows it.

    Returns:
        A record of each process, in the order they ended, failed ones included; they are on disk too, in ``output``,
        and those of an earlier run there count, unless ``rerun``.

    Raises InferlensError for a bad model or option. A case that fails is a record, not an error.
    """
    from inferlens.cli import progress, screen
    from inferlens.execution.commands import bench_model
    from inferlens.record.store import safe_name
    from inferlens.views.results import Records

    check("bench", options)
    if observer or not screen.errors().is_terminal:
        records = bench_model(model, example_inputs, options, observer)
    else:
        with progress.Bar(screen.errors()) as bar:
            records = bench_model(model, example_inputs, options, bar)
    folders = {str(Path(options.get("output") or "results") / safe_name(record.model.name)) for record in records}
    return Records(records, reference=options.get("reference"), where=sorted(folders))


@takes("tune")
def tune(model: Any, example_inputs: Any = None, *, observer: Observer | None = None, **options: Any) -> Tuning:
    """Find the fastest way with right outputs among all backends and their options: ``print`` shows the answer.

    The options are those of ``inferlens tune``. The same call continues where one was stopped.

    Args:
        model, example_inputs, observer: as for :func:`inferlens.bench`.

    Returns:
        The records of the last rounds, in which the fastest few met. ``.load()`` makes the winner ready to be called.

    Raises InferlensError for a bad model or option, or if nothing can run here.
    """
    from inferlens.execution.commands import tune_model
    from inferlens.views.results import Tuning

    check("tune", options)
    values, plan_words = own_options("tune", options)
    return Tuning(tune_model(model, example_inputs, {**plan_words, **values}, observer), (model, example_inputs))


@takes("load")
def load_test(model: Any, example_inputs: Any = None, *, observer: Observer | None = None, **options: Any) -> LoadTest:
    """Find the deployment that serves the most requests per second within a limit on their latency::

        load_test("resnet50", within="p99=50ms", price="3.2/h")

    The options are those of ``inferlens load``. The same call continues where one was stopped.

    Args:
        model: as for :func:`inferlens.bench`, a folder of results, whose winners are measured, or the address of a
            server that ``inferlens export`` has written.
        example_inputs, observer: as for :func:`inferlens.bench`.

    Returns:
        A record of each deployment and round; ``print`` shows the answer. ``.best`` serves the most.

    Raises InferlensError for a bad model or option. A deployment that fails is a record, not an error.
    """
    from inferlens.execution.load import run
    from inferlens.execution.protocol import Observer
    from inferlens.record.load import LoadRecord
    from inferlens.views.results import LoadTest, winner_plans

    check("load", options)
    records: list[LoadRecord] = []
    run.load_test(model, options, observer or Observer(), records, winner_plans(model, options), example_inputs)
    return LoadTest(records)


@takes("profile")
def profile(
    model: Any, example_inputs: Any = None, *, observer: Observer | None = None, **options: Any
) -> LoadedProfiles:
    """Find out where the time of a model goes on the backends of this machine.

    The options are those of ``inferlens profile``, without its traces.

    Args:
        model, example_inputs, observer: as for :func:`inferlens.bench`.

    Returns:
        One profile for each case and level, those that failed included; ``print`` shows their findings. They are on
        disk too, beside the records.

    Raises InferlensError for a bad model or option. A case that cannot be profiled says why in its profile.
    """
    from inferlens.execution.commands import profile_model

    check("profile", options)
    return profile_model(model, example_inputs, options, observer)


@takes("ab")
def ab(
    model: Any,
    a: Any = None,
    b: str | None = None,
    example_inputs: Any = None,
    *,
    observer: Observer | None = None,
    on_round: Callable[[ABResult], None] = lambda _: None,
    **options: Any,
) -> ABResult:
    """Measure two things in turns, until it is decided which is faster or the time is over::

        ab("resnet18", "BACKEND", "OTHER:VARIANT fp16")
        ab("mypackage.models:build", checkout=("../old", "."))
        ab("resnet18", "BACKEND", python=("old/bin/python", "new/bin/python"))

    The options are those of ``inferlens ab``, for both sides. The words of a case take precedence.

    Args:
        model, a, b: a name, a file, a factory or a live ``nn.Module``, and two cases in words; or two models.
        example_inputs, observer: as for :func:`inferlens.bench`.
        on_round: receives the result so far after each round.

    Raises InferlensError for bad input, or models of different inputs. A side that fails is a verdict, not an error.
    """
    from inferlens.execution.ab import ab as measure

    check("ab", options)
    return measure(model, a, b, example_inputs, observer=observer, on_round=on_round, **options)


@takes("ab", "python", "checkout", "metric", "threshold", "max_rounds")
def ab_steps(
    model: Any,
    case: Any = None,
    example_inputs: Any = None,
    *,
    python: Any,
    observer: Observer | None = None,
    on_round: Callable[[ABSteps], None] = lambda _: None,
    **options: Any,
) -> ABSteps:
    """Measure a case in several environments, each against the one before, to find the change that made it slower::

        ab_steps("resnet18", "BACKEND", python=("old/bin/python", "one_more/bin/python", "new/bin/python"))

    Args:
        model, case, example_inputs: as for :func:`inferlens.ab`.
        python: interpreters of the environments, in the order in which one became the other.
        observer, on_round: as for :func:`inferlens.ab`.

    Raises InferlensError for bad input. A side that fails is a verdict, not an error.
    """
    from inferlens.execution.ab import ab_steps as measure

    check("ab", options)
    return measure(model, case, example_inputs, python=python, observer=observer, on_round=on_round, **options)


@takes("quantize")
def quantize(
    model: Any, example_inputs: Any = None, *, phase: Callable[[str], None] = lambda _: None, **options: Any
) -> Quantization:
    """Quantize a model to a file, run it, and compare its outputs with those in fp32.

    The options are those of ``inferlens quantize``.

    Args:
        model, example_inputs: as for :func:`inferlens.bench`.
        phase: receives the name of each phase as it begins.

    Raises InferlensError for a bad model or option, or if the model cannot be quantized.
    """
    from inferlens.execution.quantize import quantize as quantized

    check("quantize", options)
    return quantized(model, example_inputs, phase=phase, **options)


def check(command: str, options: dict[str, Any]) -> None:
    """Refuse keywords that the command does not have, with near misses."""
    for name in options:
        check_choice(f"option of {command}", name, sorted(options_of(command)))


def load(results: str | PathLike[str], *, rebuild: bool = False, trust: bool = False, copy: bool = True) -> Deployed:
    """Return the fastest case of a folder of results, or the case of a folder, as a callable like its model.

    It is prepared in this process as it was when it was measured, for the same shapes, and then called a few times.
    ``Deployed`` in :mod:`inferlens.execution.deploy` describes its inputs, its outputs and its copies.

    Args:
        results: such as ``results/resnet50``, or the folder of one case in it.
        rebuild: prepare it anew if GPU, versions, weights or files differ from the record, instead of refusing it. Its
            outputs are then checked against the reference, if that can be computed.
        trust: open files that can run code.
        copy: copy outputs that the next call would overwrite.

    Raises InferlensError if it did not run or was wrong, or cannot run here as it was measured.
    """
    from inferlens.views.results import best_case
    from inferlens.views.results import load as load_case

    record, folder = best_case(results)
    return load_case(record, folder, rebuild=rebuild, trust=trust, copy=copy)


def export(
    results: str | PathLike[str], output: str | PathLike[str], *, rebuild: bool = False, trust: bool = False
) -> Path:
    """Write the fastest case of a folder of results, or the case of a folder, as files that run without Inferlens.

    The new folder ``output`` gets the model, ``run.py`` and ``requirements.txt``. The script is run once, and its
    outputs are checked.

    Args:
        results: such as ``results/resnet50``, or the folder of one case in it.
        output: a folder that is new or empty.
        rebuild, trust: as for :func:`load`.

    Returns:
        The folder.

    Raises InferlensError if the case is in no file, does not fit this machine, or the script's outputs are wrong.
    """
    from inferlens.execution.deploy import export_best
    from inferlens.views.results import best_case

    folder = Path(output)
    export_best(*best_case(results), folder, rebuild=rebuild, trust=trust)
    return folder
