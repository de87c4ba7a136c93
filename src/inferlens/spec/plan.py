"""A plan: axes whose values multiply into cases. The same words on the command line, in a file and in Python."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from inferlens.errors import InferlensError, suggestion
from inferlens.spec.case import DEVICES, IO, PRECISIONS, QUANTIZED, Budget, TensorSpec
from inferlens.spec.plan_budget import BUDGET_WORDS, budget_of
from inferlens.spec.plan_words import count, counts, flag, known, listed, option_values, texts


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
            precision=known("precision", words.get("precision", ()), (*PRECISIONS, *QUANTIZED)),
            batch=counts("batch", words.get("batch", ())),
            device=known("device", words.get("device", ()), DEVICES),
            threads=counts("threads", words.get("threads", ())),
            io=known("io", words.get("io", "device"), IO),
            cold=flag("cold", words.get("cold", False)),
            rotate=flag("rotate", words.get("rotate", False)),
            depth=counts("depth", words.get("depth", ())),
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
    ("model", "backend", "precision", "batch", "device", "threads", "option", "input", "weights", "trust", "seed",
     "io", "cold", "rotate", "depth", "repeats", "rebuild", "output", *BUDGET_WORDS)
)  # fmt: skip
