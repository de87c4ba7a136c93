"""What a backend declares of its options: those that a tuning tries, and the configurations that race by default."""

from __future__ import annotations

from msgspec import Struct

from inferlens.spec.case import Case, Option

THREADS = "threads"  # of a case: a knob beside the options of its backend


class Knob(Struct, frozen=True, kw_only=True):
    """Something that is worth trying when a case is tuned: an option of its backend, or ``threads``.

    Attributes:
        values: beside the default, the most promising first.
        devices, precisions, variants: of cases where it does something; empty: of all.
        needs: options that must have another value than their default for it to do something.
        without: options beside which it does nothing, or fails, once they have another value than their default.
        objectives: for which it is worth a process, by their names; empty: for all.
        build: how many times longer preparing the case takes with it, about.
        helps: against which bottlenecks of ``analysis.bottleneck`` it may help.
    """

    name: str
    values: tuple[Option, ...]
    devices: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    objectives: tuple[str, ...] = ()
    build: float = 1.0
    helps: tuple[str, ...] = ()

    def fits(self, case: Case) -> bool:
        """Whether it may do something for ``case``, whose options are those that are not the default."""
        here = ((self.devices, case.device), (self.precisions, case.precision), (self.variants, case.variant))
        return (
            all(not known or value in known for known, value in here)
            and all(name in case.options for name in self.needs)
            and not any(name in case.options for name in self.without)
        )

    def setting(self, case: Case) -> Option | None:
        """Its value in ``case``; ``None`` is the default."""
        return case.threads if self.name == THREADS else case.options.get(self.name)


class Recommendation(Struct, frozen=True):
    """A configuration in which the experts of a library deploy it. ``bench`` races these by default.

    Attributes:
        variant, device: those of the cases.
        options: the backend's options that differ from their defaults.
        precisions: of cases that it is for; empty: all.
        convolutional: whether it is for models with 2-D convolutions, or for those without; ``None``: for all.
        fixed_shapes: whether the options need inputs of one shape. Without them it runs at any shape.
    """

    variant: str
    device: str = "cuda"
    options: dict[str, Option] = {}
    precisions: tuple[str, ...] = ()
    convolutional: bool | None = None
    fixed_shapes: bool = False

    def fits(self, case: Case, *, convolutional: bool) -> bool:
        """Return whether it is for the device and precision of a case, and for a model with or without convolutions."""
        return (
            self.device == case.device
            and case.precision in (self.precisions or (case.precision,))
            and self.convolutional in (None, convolutional)
        )
