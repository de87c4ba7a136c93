"""The part of a plan that says what is measured of each case, and how much: from words to a :class:`Budget`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferlens.case import MODES, STOPS, Budget
from inferlens.errors import InferlensError
from inferlens.plan_words import count, flag, known
from inferlens.units import parse_duration, parse_share

BUDGET_WORDS = ("mode", "warmup", "iterations", "seconds", "stop", "half_width", "max_time", "timeout")


def budget_of(words: Mapping[str, Any]) -> Budget:
    """The budget that a plan's words mean.

    Raises:
        InferlensError: if a value does not fit, or two of them ask for different ends of a series.
    """
    given: dict[str, Any] = {}
    if "warmup" in words:
        given["warmup"] = count("warmup", words["warmup"], least=0)
    if "iterations" in words:
        given["iterations"] = count("iterations", words["iterations"])
    for name in ("seconds", "timeout", "max_time"):
        if name in words:
            given[name] = parse_duration(str(words[name]))
    for name, values in (("mode", MODES), ("stop", STOPS)):
        if name in words:
            (given[name],) = known(name, str(words[name]), values)
    if "half_width" in words:
        given["half_width"] = parse_share(str(words["half_width"]))
    ends = [name for name in ("iterations", "seconds", "stop", "half_width") if name in words]
    if len(ends) > 1 and set(ends) != {"stop", "half_width"}:
        raise InferlensError(
            f"{' and '.join(ends)} both say when a series of samples ends.", expected="one of them", cure=f"--{ends[0]}"
        )
    budget = Budget(**given)
    if budget.mode == "throughput" and flag("cold", words.get("cold", False)):
        raise InferlensError("Calls in flight together have no cold caches.", cure="--mode latency with --cold")
    return budget
