"""What the profiles of measured candidates advise: other candidates that may lift what limits them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from inferlens.analysis.measures import bottleneck
from inferlens.analysis.tuning import Advice, Candidate
from inferlens.backends import BACKENDS
from inferlens.execution.tuning.space import Space, neighbours
from inferlens.record.record import Record
from inferlens.spec.case import Case

# Times as slow as the best: what is further behind is not followed. CUDA graphs made calls four times as fast.
REACH = {"host": 4.0, "layout": 1.3, "memory": 1.3}
LOWER = ("fp16", "bf16")  # precisions that move fewer bytes than fp32


def helpful(case: Case, against: str, space: Space) -> list[str]:
    """Return the settings of a case that may help against a bottleneck, or its variant or precision if those may."""
    found = [
        f"{name}={value}"
        for name, value in space.settings(case).items()
        if any(knob.name == name and against in knob.helps for knob in space.able(case))
    ]
    if against in BACKENDS.get(case.backend).variant_helps.get(case.variant or "", ()):
        found.append(case.backend_label)
    return [*found, *([case.precision] if against == "memory" and case.precision in LOWER else [])]


def advised(records: Sequence[Record], behind: Callable[[Case], float], space: Space) -> Iterator[Case]:
    """Yield the candidates that may lift what limits the measured ones, those that are advised by the fastest first.

    ``behind`` gives the logarithm of how many times as slow as the best a case is.
    """
    for record in sorted(records, key=lambda record: behind(record.case)):
        against = bottleneck(record)
        if against and behind(record.case) <= math.log(REACH[against]):
            already = {*helpful(record.case, against, space)}
            for case in _near(record.case, space):
                if {*helpful(case, against, space)} - already:
                    yield case


def _near(case: Case, space: Space) -> Iterator[Case]:
    """Yield the candidates with one setting changed, then the families with another variant or precision."""
    yield from neighbours(case, space)
    for family in (each.case for each in space.families if each.case.backend == case.backend):
        if (family.precision != case.precision) + (family.variant != case.variant) == 1:
            yield family


def paid(
    best: Case, candidates: Sequence[Candidate], records: Mapping[str, Record], space: Space
) -> tuple[Advice, ...]:
    """Return what of the best case lifts a limit of slower ways, each with the fastest way that has the limit.

    ``records`` has the records of the candidates, by their ids.
    """
    limited: dict[str, list[tuple[float, Case]]] = {}
    for each in candidates:
        record = records[each.record]
        against = bottleneck(record) if each.speedup and each.high and each.high < 1 else ""
        if against and not helpful(record.case, against, space):
            limited.setdefault(against, []).append((each.speedup or 0.0, record.case))
    found = []
    for against, rivals in limited.items():
        speedup, rival = max(rivals, key=lambda pair: pair[0])
        if settings := helpful(best, against, space):
            found.append(Advice(", ".join(settings), against, rival.way, 1 / speedup))
    return tuple(found)
