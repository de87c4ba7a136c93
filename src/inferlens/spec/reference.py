"""Which case words such as ``openvino fp16`` name: the reference that the others are compared with."""

from __future__ import annotations

import re
from collections.abc import Sequence

from inferlens.errors import InferlensError, suggestion
from inferlens.spec.case import Case


def fitting(cases: Sequence[Case], named: str) -> list[Case]:
    """The cases of which all words of ``named`` are words, the plainest first.

    Sizes and what is known only once a case ran fit every case.
    """
    wanted = {word for word in words(named) if not re.search(r"[(]|\.\.", word)}
    found = [case for case in cases if wanted <= words(case.label) | {case.backend}]
    return sorted(
        found, key=lambda each: (each.label != named, each.precision != "fp32", len(each.options), each.threads or 0)
    )


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
