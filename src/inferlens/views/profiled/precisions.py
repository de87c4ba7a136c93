"""Whether a quantized case is really computed in what it says: one line for each."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.analysis.profile.layers import runs_of
from inferlens.analysis.profile.precision import precisions
from inferlens.spec.case import QUANTIZED
from inferlens.units import percent, plural
from inferlens.views.profiled import profile_tables
from inferlens.views.profiled.cases import ProfiledCase, told_apart
from inferlens.views.profiled.profile_tables import name_of

NAMED, LITTLE = 2, 0.005  # layers that are named; a share of the time that is not told


def precision_lines(cases: Sequence[ProfiledCase]) -> list[str]:
    """``onnxruntime:cpu int8: int8 71 % of the time ...``, of each case that is quantized and tells."""
    told = [(case, line) for case in cases if (line := precision_line(case))]
    _, names = told_apart([case for case, _ in told]) if told else ("", [])
    return [f"{name}: {line}" if name else line for name, (_, line) in zip(names, told, strict=True)]


def precision_line(case: ProfiledCase) -> str:
    """The shares of the time and of the multiply-adds in the case's precision, and what is in none; else empty.

    Such as ``int8 71 % of the time, 98 % of multiply-adds; stayed in fp32: head 4 %; 12 conversions 9 %``.
    """
    profile, asked = case.profile, case.profile.case.precision
    runs = runs_of(profile, None, case.unprofiled)
    found = None if isinstance(runs, str) or asked not in QUANTIZED else precisions(profile, runs)
    if found is None or isinstance(runs, str):
        return ""
    base = runs if profile.layers else runs.of_kernels()
    said = [f"{asked} {percent(found.time.get(asked, 0.0))} of the time"]
    said[0] += f", {percent(found.work.get(asked, 0.0))} of multiply-adds" if found.work else ""
    shares = [base.share(base.layers[place]) or 0.0 for place in found.stayed]
    for name in dict.fromkeys(getattr(profile.parts[place], "precision", "") for place in found.stayed):
        stayed = [at for at, place in enumerate(found.stayed) if getattr(profile.parts[place], "precision", "") == name]
        words = [f"{_name(case, found.stayed[at])} {percent(shares[at])}" for at in stayed[:NAMED]]
        if rest := stayed[NAMED:]:
            words.append(f"{plural(len(rest), 'other')} {percent(sum(shares[at] for at in rest))}")
        said.append(f"stayed in {name}: {', '.join(words)}")
        found.time[name] = found.time.get(name, 0.0) - sum(shares[at] for at in stayed)
    others = {name: each for name, each in found.time.items() if name != asked and each >= LITTLE}
    said += [f"{name or 'unknown'} {percent(each)}" for name, each in others.items()]
    if found.conversions:
        said.append(f"{plural(len(found.conversions), 'conversion')} {percent(found.converting)}")
    return "; ".join(said)


def _name(case: ProfiledCase, place: int) -> str:
    part = case.profile.parts[place]
    return profile_tables.modules(part.modules) if part.modules else name_of(part.name)
