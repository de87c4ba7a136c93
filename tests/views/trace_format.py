"""Chrome's Trace Event Format, as far as our traces use it: what every one of them has to hold.

The format: "Trace Event Format", 2016, sections JSON Object Format, Complete Events and Metadata Events.
"""

import json
import re
from typing import Any


def checked(data: bytes) -> dict[str, Any]:
    """What the format asks for, and what a viewer needs to draw it as it is meant."""
    trace = json.loads(data)
    assert trace["displayTimeUnit"] == "ns"
    named: dict[tuple[str, int], str] = {}
    rows: dict[int, list[dict[str, Any]]] = {}
    for event in trace["traceEvents"]:
        assert [type(event[key]) for key in ("pid", "tid", "name")] == [int, int, str]
        assert event["name"].strip()
        if event["ph"] == "M":
            place = event["tid"] if event["name"].startswith("thread") else event["pid"]
            if event["name"].endswith("_name"):
                assert (event["name"], place) not in named
                named[event["name"], place] = event["args"]["name"]
            continue
        assert event["ph"] == "X"
        assert {("process_name", event["pid"]), ("thread_name", event["tid"])} <= set(named)
        rows.setdefault(event["tid"], []).append(event)
    assert all(re.fullmatch(rb"\d+(?:\.\d{1,3})?", value) for value in re.findall(rb'"(?:ts|dur)":([^,]*),', data))
    for events in rows.values():
        _nested(events)
    trace["rows"] = {named["thread_name", row]: events for row, events in rows.items()}
    return trace


def _nested(events: list[dict[str, Any]]) -> None:
    """Slices of a row are in order, and lie within each other or apart."""
    open_: list[int] = []
    before = 0
    for begin, end in map(span, events):
        assert begin >= before
        before = begin
        while open_ and open_[-1] <= begin:
            open_.pop()
        assert not open_ or end <= open_[-1]
        open_.append(end)


def span(event: dict[str, Any]) -> tuple[int, int]:
    """Nanoseconds."""
    begin = round(event["ts"] * 1000)
    return begin, begin + round(event["dur"] * 1000)
