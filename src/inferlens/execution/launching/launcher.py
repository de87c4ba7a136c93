"""The seam of where a plan runs: a launcher has workers, and a worker does a part of the plan, a task on a ``PartJob``.

A part is done by the same code wherever that is, and tells an observer what happens. This one is told here, with each
record and the folder that it has here. A launcher is a class of the entry-point group ``inferlens.launchers``; nothing
outside of it knows which one is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from inferlens.execution.protocol import Found, Observer, PartJob
from inferlens.registry import Registry
from inferlens.spec.plan import LOCAL, Plan

P = TypeVar("P", bound=PartJob)
Part = Callable[[P, Observer], Found]


class WorkerLost(Exception):
    """A worker ended before its part was done; the text says how."""


class Worker(ABC):
    """Does parts of a plan, one at a time, and each in a thread of its own."""

    kind = ""  # of what it measures on, such as ``H200``: each kind measures the whole plan. Empty: there is only one
    gpu = ""  # what ``CUDA_VISIBLE_DEVICES`` is in its processes, if that is known beforehand: the UUID of its only one
    neighbours = 0  # how many others work on the same machine at the same time, if that is known

    @abstractmethod
    def do(self, part: Part[P, Found], job: P, observer: Observer) -> Found:
        """Return what a part finds; ``Order.of`` has both as data. Raises WorkerLost if the worker came to an end.

        What it has told of is done then; another one does the rest.
        """


class Launcher(ABC):
    """Workers for a plan, there while its context lasts.

    ``apart``: whether its workers are somewhere else than in this process, so that they may work at the same time and
    come to an end.
    """

    apart = True

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.where = plan.where

    def __enter__(self) -> Launcher:
        return self

    def __exit__(  # noqa: B027 - many have nothing to let go of
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Lets go of what it has begun."""

    @abstractmethod
    def workers(self, most: int) -> Sequence[Worker]:
        """Those that may work at the same time, ``most`` of each kind; there is one of each kind at least."""

    def stop(self) -> None:  # noqa: B027 - nor anything to end
        """Ends the parts under way, from another thread: the user has interrupted the run."""


LAUNCHERS: Registry[Launcher] = Registry("inferlens.launchers", "launcher")


def launcher_of(plan: Plan) -> Launcher:
    """Return the launcher that a plan names. Raises InferlensError if it is not there, or lacks what the plan wants."""
    if plan.where.launcher == LOCAL:  # by no entry point, which a checkout may lack until it is installed again
        from inferlens.execution.launching.local import Local

        return Local(plan)
    make: Any = LAUNCHERS.get(plan.where.launcher)
    made: Launcher = make(plan)
    return made
