"""The part of a plan that says what is measured of each case, and how much: from words to a :class:`Budget`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferlens.errors import InferlensError
from inferlens.spec.case import MODES, STOPS, Budget
from inferlens.spec.plan_words import count, flag, known
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
            if not given[name] and name != "seconds":
                raise InferlensError(f"{name} of 0 leaves no time for anything.", expected="a duration, such as 10s")
    for name, values in (("mode", MODES), ("stop", STOPS)):
        if name in words:
            (given[name],) = known(name, str(words[name]), values)
    if "half_width" in words:
        given["half_width"] = parse_share(str(words["half_width"]))
        if not 0 < given["half_width"] < 1:
            raise InferlensError(
                f"'{words['half_width']}' is no share of a median.",
                expected="more than 0 and less than 100%, such as 1%",
            )
    ends = [name for name in ("iterations", "seconds", "stop", "half_width") if name in words]
    if len(ends) > 1 and set(ends) != {"stop", "half_width"}:
        raise InferlensError(
            f"{' and '.join(ends)} both say when a series of samples ends.", expected="one of them", hint=f"--{ends[0]}"
        )
    if "half_width" in words and given.get("stop", "half-width") != "half-width":
        raise InferlensError(
            f"half_width is when a series ends with stop=half-width, not with stop={given['stop']}.",
            hint="--half-width alone",
        )
    budget = Budget(**given)
    _check_mode(budget.mode, words, [name for name in ends if name != "seconds"])
    return budget


def _check_mode(mode: str, words: Mapping[str, Any], of_latency: Sequence[str]) -> None:
    """Refuses what would mean nothing for what is measured."""
    one_at_a_time = [name for name in ("cold", "rotate") if flag(name, words.get(name, False))]
    if mode == "throughput" and one_at_a_time:
        name = one_at_a_time[0]
        raise InferlensError(f"{name} is for one call at a time, not for throughput.", hint=f"--mode latency --{name}")
    if mode == "throughput" and of_latency:
        raise InferlensError(f"{of_latency[0]} is about latency samples, and none are taken.", hint="--mode both")
    if "depth" in words and (mode == "latency" or one_at_a_time):
        why = f"with {one_at_a_time[0]}" if one_at_a_time else "in mode latency"
        raise InferlensError(f"depth is about throughput, which is not measured {why}.", hint="without --depth")
