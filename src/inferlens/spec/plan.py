"""A plan: axes whose values multiply into cases. The same words on the command line, in a file and in Python."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from inferlens.errors import InferlensError, suggestion
from inferlens.spec.case import AXES, MODES, STOPS, Axis, Budget, TensorSpec
from inferlens.spec.words import count, counts, flag, known, listed, option_values, texts
from inferlens.units import parse_duration, parse_share

BUDGET_WORDS = ("mode", "warmup", "iterations", "seconds", "stop", "half_width", "max_time", "timeout")


class Plan(Struct, frozen=True, kw_only=True):
    """What to measure.

    Attributes:
        model: names, files or factories.
        backend: ``name`` or ``name:variant``; empty is every backend that works here, ``all`` every variant of them.
        precision, batch, device, threads, io: the axes; empty is the default of each.
        option: values by ``backend.option``.
        input: inputs that replace the model's own.
        cold: whether the device's cache is flushed before each latency sample.
        rotate: whether inputs rotate through a set that is larger than the device's cache.
        depth: values of how many calls are in flight when throughput is measured; empty is no limit.
        rebuild: whether to build anew what was built before.
        repeats: processes that each case is measured in, in turns with the other cases.
        budget: what is measured of each case, and how much.
    """

    model: tuple[str, ...]
    backend: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    batch: tuple[int, ...] = ()
    device: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()
    io: tuple[str, ...] = ("device",)
    cold: bool = False
    rotate: bool = False
    depth: tuple[int, ...] = ()
    option: dict[str, tuple[str, ...]] = {}
    input: tuple[TensorSpec, ...] = ()
    weights: str | None = None
    trust: bool = False
    rebuild: bool = False
    seed: int = 0
    repeats: int = 1
    budget: Budget = Budget()
    output: str = "results"

    @staticmethod
    def from_words(words: Mapping[str, Any]) -> Plan:
        """A plan from words as a person writes them: single values, lists, or texts with commas.

        Raises:
            InferlensError: for an unknown word or a value that does not fit.
        """
        words = {name: value for name, value in words.items() if value is not None}
        for name in words:
            if name not in _WORDS:
                raise InferlensError(
                    f"A plan has no '{name}'.",
                    expected=f"one of {', '.join(sorted(_WORDS))}",
                    hint=suggestion(name, _WORDS),
                )
        if not words.get("model"):
            raise InferlensError("The plan names no model.", hint="inferlens bench resnet18")
        return Plan(
            model=texts(words["model"]),
            backend=texts(words.get("backend", ())),
            **{axis.name: _values(axis, words) for axis in AXES},
            option=option_values(words.get("option", {})),
            input=TensorSpec.parse_all(listed(words.get("input", ()))),
            weights=words.get("weights"),
            trust=flag("trust", words.get("trust", False)),
            rebuild=flag("rebuild", words.get("rebuild", False)),
            seed=count("seed", words.get("seed", 0), least=0),
            repeats=count("repeats", words.get("repeats", 1)),
            budget=budget_of(words),
            output=str(words.get("output", "results")),
        )

    @staticmethod
    def from_file(path: Path) -> dict[str, Any]:
        """The words of a plan file (TOML).

        Raises:
            InferlensError: if the file cannot be read or is no TOML.
        """
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InferlensError(f"The plan {path} cannot be read: {error}.", expected="a TOML file") from error


_WORDS = frozenset(
    ("model", "backend", "option", "input", "weights", "trust", "seed", "repeats", "rebuild", "output", *BUDGET_WORDS,
     *(axis.name for axis in AXES))
)  # fmt: skip


def _values(axis: Axis, words: Mapping[str, Any]) -> Any:
    """What a plan has of an axis: all values that are asked for, or whether a flag is."""
    if axis.flag:
        return flag(axis.name, words.get(axis.name, axis.default))
    asked = words.get(axis.name, () if axis.default is None else axis.default)
    return known(axis.name, asked, axis.values) if axis.values else counts(axis.name, asked)


def budget_of(words: Mapping[str, Any]) -> Budget:
    """The budget that a plan's words mean.

    Raises:
        InferlensError: if a value does not fit, or two of them ask for different ends of a series.
    """
    given: dict[str, Any] = {}
    for name, least in (("warmup", 0), ("iterations", 1)):
        if name in words:
            given[name] = count(name, words[name], least)
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
            what = f"'{words['half_width']}' is no share of a median."
            raise InferlensError(what, expected="more than 0 and less than 100%, such as 1%")
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
