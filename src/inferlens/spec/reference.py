"""Which case words such as ``openvino fp16`` name: the reference that the others are compared with."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from functools import partial
from typing import Any

from inferlens.errors import InferlensError, suggestion
from inferlens.spec.case import Case, shown_together


def references(cases: Sequence[Case], usual: Set[str], named: str = "") -> dict[str, Case]:
    """The reference of each device, in whatever order cases come: of those that ``named`` fits, the plainest."""
    able = fitting(cases, named) if named else list(cases)

    def place(case: Case, device: str) -> tuple[Any, ...]:
        return case.label != named, *plainness(case, device, usual), len(case.label), case.label

    return {device: min(able, key=partial(place, device=device)) for device in {each.device for each in cases} if able}


def plainness(case: Case, device: str, usual: Set[str]) -> tuple[Any, ...]:
    """How far a case is from the plain one that others on ``device`` are compared with; the least is it.

    It is of a ``usual`` backend (a label, such as ``pytorch``); on the device itself, or else on the CPU; in fp32, with
    the fewest options, the default number of threads or else the most of them, in the usual variant. Without a
    case of a usual backend the same order holds among the others.
    """
    return (
        case.backend not in {label.partition(":")[0] for label in usual},
        case.device != device, case.device != "cpu",
        case.precision != "fp32", len(case.options_label.split()), case.threads is not None, -(case.threads or 0),
        case.backend_label not in usual,
    )  # fmt: skip


def fitting(cases: Sequence[Case], named: str) -> list[Case]:
    """The cases of which all words of ``named`` are words; sizes, and what is known once a case ran, fit every case."""
    wanted = {word for word in words(named) if not re.search(r"[(]|\.\.", word)}
    both = zip(cases, shown_together(cases), strict=True)
    return [case for case, shown in both if wanted <= words(case.label) | words(shown.label) | {case.backend}]


def refuse_unknown(cases: Sequence[Case], named: str) -> None:
    """Refuses, before anything is measured, words that mean no case."""
    if not named or not cases or any(spec.dynamic for case in cases for spec in case.inputs):
        return
    if not fitting(cases, named):
        raise unknown(named, [case.label for case in cases])


def words(text: str) -> set[str]:
    """The words of a label, or of what names one, however they are written."""
    text = re.sub(r"\bbatch[ =]?(\d+)", r"batch=\1", text.replace(",", " "))
    return set(re.sub(r"\b(\d+) threads?\b", r"threads=\1", text).split())


def unknown(named: str, labels: Sequence[str]) -> InferlensError:
    """Words that mean no case."""
    hint = suggestion(named, {*labels, *(label.partition(" ")[0] for label in labels)})
    labels = list(dict.fromkeys(labels))
    expected = f"one of {', '.join(map(repr, labels[:12]))}{' ...' if len(labels) > 12 else ''}"
    return InferlensError(f"No case fits the reference '{named}'.", expected=expected, hint=hint)
