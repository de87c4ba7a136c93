"""Events that a trace has as two, a begin and an end, put together: what ends is what began last on the same thread."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from inferlens.trace.forms import Event
from inferlens.trace.notes import Notes


class Spans:
    """Takes begins and ends, in any order, and gives complete events."""

    def __init__(self) -> None:
        self._ends: dict[int, list[Event]] = {}

    def add(self, thread: int, event: Event) -> None:
        """A begin (``B``) or an end (``E``)."""
        self._ends.setdefault(thread, []).append(event)

    def complete(self, notes: Notes) -> list[Event]:
        """Complete events of the pairs; those without a partner are counted."""
        made: list[Event] = []
        unpaired = 0
        for events in self._ends.values():
            timed = [event for event in events if event.ts is not None]
            unpaired += len(events) - len(timed)
            open_ones: list[Event] = []
            for event in sorted(timed, key=_time):  # stable: equal times stay in the order of the file
                if event.ph == "B":
                    open_ones.append(event)
                elif open_ones:
                    made.append(_pair(open_ones.pop(), event))
                else:
                    unpaired += 1
            unpaired += len(open_ones)
        notes.count("begin without an end, or end without a begin, and were skipped", unpaired)
        return made


def _time(event: Event) -> Any:
    return event.ts


def _pair(begin: Event, end: Event) -> Event:
    made = Event(ph="X", name=begin.name, cat=begin.cat, pid=begin.pid, tid=begin.tid, ts=begin.ts, args=begin.args)
    times: list[Any] = [end.ts, begin.ts]
    if Decimal in map(type, times):  # the other may come of a part of the text whose times floats hold
        times = [Decimal(each) for each in times]
    made.dur = times[0] - times[1]
    return made
