"""What backends lack here: the variant of one that lacks least, and why nothing of a plan can run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from inferlens.backends import BACKENDS
from inferlens.backends.base import Absence, Capabilities
from inferlens.errors import InferlensError
from inferlens.models.model import Found
from inferlens.units import listing


def installed(backend: str, can: Capabilities) -> str:
    """The first variant that lacks nothing but a device; the first of all if every one lacks more."""
    lacking = {absence.variant for absence in can.absent if not absence.device}
    variants = BACKENDS.get(backend).variants
    return next((each for each in variants if each not in lacking), variants[0])


def nothing_runs(
    found: Sequence[Found], devices: Sequence[str], capabilities: Mapping[str, Capabilities]
) -> InferlensError:
    """That no backend runs these models here, with what those lack that would.

    Args:
        found: the models.
        devices: those asked for; empty: any.
        capabilities: what the backends that are asked for can do here, by name.
    """
    formats = listing(list(dict.fromkeys(model.format for model in found)))
    on = f" on {listing(devices)}" if devices else ""
    lacking = dict(pair for model in found for pair in _lacking(model, devices, capabilities))
    reasons: dict[str, list[str]] = {}
    for label, absence in lacking.items():
        reasons.setdefault(absence.reason.rstrip("."), []).append(label)
    said = "; ".join(f"{listing(labels)}: {reason}" for reason, labels in reasons.items())
    cures = list(dict.fromkeys(absence.cure for absence in lacking.values()))
    return InferlensError(
        f"No backend here runs models of format {formats}{on}.{f' {said}.' if said else ''}",
        cure=cures[0] if len(cures) == 1 and cures[0] else "inferlens doctor",
    )


def _lacking(
    model: Found, devices: Sequence[str], capabilities: Mapping[str, Capabilities]
) -> Iterator[tuple[str, Absence]]:
    """What each backend lacks that takes the model's format, by its label: one absence each."""
    for name, can in capabilities.items():
        if model.format not in can.formats:
            continue
        built_by = model.origin.variant if model.origin else ""
        variant = built_by if built_by in BACKENDS.get(name).variants else installed(name, can)
        for absence in can.absent:
            if absence.variant in ("", variant) and (not absence.device or not devices or absence.device in devices):
                yield f"{name}:{absence.variant}" if absence.variant else name, absence
                break
