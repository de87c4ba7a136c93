"""Cases and budgets as the words of commands that can be pasted; ``plan`` beside it reads such words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferlens.spec.case import AXES, Axis, Budget, Case, bare
from inferlens.spec.keep import keep_words
from inferlens.spec.plan import DURATIONS, LONG_SERIES, THOROUGH_SECONDS

SHARES = ("threshold", "level", "half_width")


def ab_words(a: Case, b: Case, budget: Budget, device: str) -> list[str]:
    """Two cases, what they share, and what is asked of the samples, as words of ``inferlens ab``.

    ``device`` is what cases run on there if nobody says.
    """
    own_words = ("depth", "python")  # of each side
    shared = [axis for axis in AXES if axis.name not in own_words and getattr(a, axis.name) == getattr(b, axis.name)]
    said = []
    for case in (a, b):
        own = [word for axis in AXES if axis not in shared for word in axis.words(case)]
        said.append(" ".join([case.backend_label, *own, case.options_label]).rstrip())
    said += _flags(a, shared, device)
    said += _budget_words(budget, ("iterations", "warmup", *DURATIONS, "threshold", "level"))
    return [*said, *(["--metric", "throughput"] if budget.mode == "throughput" else [])]


def _budget_words(budget: Budget, names: Iterable[str]) -> list[str]:
    """What is not the usual of a budget, as a command's options."""
    said, usual = list[str](), Budget()
    for name in names:
        if (value := getattr(budget, name)) != getattr(usual, name):
            shown = value if isinstance(value, (int, str)) else f"{100 * value:g}%" if name in SHARES else f"{value:g}s"
            said += [f"--{name.replace('_', '-')}", str(shown)]
    return said


def budget_words(budget: Budget, repeats: int) -> list[str]:
    """What was asked of ``inferlens bench`` beside cases, as its options; ``repeats``: as of a record."""
    names = ["iterations", "warmup", *DURATIONS, "threshold", "half_width", "mode", "within"]
    how = ["--quick"] if repeats == 1 else ["--repeats", str(repeats)] if repeats else []
    if (budget.within, budget.max_time) == (THOROUGH_SECONDS, LONG_SERIES):
        names, how = [name for name in names if name not in ("within", "max_time")], ["--thorough"]
    return [*how, *_budget_words(budget, names)]


def bench_words(
    case: Case, device: str, asks: Sequence[str] = (), *, others: bool = False, batches: Sequence[int] = ()
) -> list[str]:
    """A case, with what it lacks, as words of ``inferlens bench``.

    Args:
        device: as of :func:`ab_words`.
        asks: ``BACKEND.OPTION=VALUE``, ``BACKEND:VARIANT``, or ``--precision VALUE``.
        others: whether the same is measured with every backend, without options, which are of one backend.
        batches: sizes in the place of its own.
    """
    label = next((ask for ask in asks if "=" not in ask and not ask.startswith("--")), case.backend_label)
    options = {f"{case.backend}.{name}": value for name, value in case.options.items()}
    said = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options.items()]
    asked = [ask for ask in asks if "=" in ask]
    said = [each for each in said if each.partition("=")[0] not in {ask.partition("=")[0] for ask in asked}]
    words = [] if others else ["-b", label]
    flags = [part for ask in asks if ask.startswith("--") for part in ask.split()]
    replaced = {flag.removeprefix("--") for flag in flags[::2]} | ({"batch"} if batches else set())
    words += _flags(case, [axis for axis in AXES if axis.name not in replaced], device) + flags
    words += ["--batch", ",".join(map(str, batches))] if batches else []
    words += [] if others else [part for each in (*said, *asked) for part in ("--option", each)]
    return [bare(case.model), *words]


def _flags(case: Case, axes: Iterable[Axis], device: str) -> list[str]:
    """The values of axes, weights, seed and inputs that are not the usual ones, as a command's options."""
    said: list[str] = []
    omitted = {**{axis.name: axis.default for axis in AXES}, "precision": "fp32", "device": device, "seed": 0}
    for name in (*(axis.name for axis in axes), "weights", "calibration", "keep", "seed"):
        value = getattr(case, name)
        if value not in (None, "") and value != omitted.get(name):
            values = keep_words(case) if name == "keep" else [str(value)]
            said += [f"--{name}"] if value is True else [part for each in values for part in (f"--{name}", each)]
    return said + [part for spec in case.inputs for part in ("--input", spec.asked)]
