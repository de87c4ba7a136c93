"""Everything that is known of one or many models on one page: the answer first, then what it stands on.

A section draws what is there, with the tables and charts of the commands; one of which there is nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from inferlens.analysis.runs import latest
from inferlens.record.record import machine_name
from inferlens.spec.case import bare
from inferlens.units import listing, plural
from inferlens.views.plain import plain
from inferlens.views.report.blocks import Block, Report, Section
from inferlens.views.report.found import Found
from inferlens.views.report.how import how_it_was_measured
from inferlens.views.report.looked import names
from inferlens.views.report.measured import answer, comparison
from inferlens.views.report.time import time
from inferlens.views.report.traces import traces
from inferlens.views.report.tuned import tuned

SECTIONS: dict[str, tuple[str, Callable[[Found], Iterator[Block]]]] = {
    "answer": ("Answer", answer),
    "comparison": ("Comparison", comparison),
    "tuning": ("Tuning", tuned),
    "time": ("Where the time goes", time),
    "traces": ("Traces", traces),
    "how": ("How it was measured", how_it_was_measured),
}


def report(found: Found) -> Report:
    """The page of all that was found."""
    made = ((name, title, list(blocks(found))) for name, (title, blocks) in SECTIONS.items())
    return Report(_title(found), [Section(name, title, blocks) for name, title, blocks in made if blocks])


def _title(found: Found) -> str:
    """The models, and the machines if there are several."""
    records = found.every
    models = list(dict.fromkeys(plain(bare(run.first.case.model)) for run in latest(records)))
    if not models:
        models = names(found.traces)
        return models[0] if len(models) == 1 else f"{len(models)} traces"
    machines = {machine_name(record.environment) for record in records}
    shown = models if len(models) < 5 else [*models[:3], f"{len(models) - 3} more models"]
    return listing(shown) + (f" on {plural(len(machines), 'machine')}" if len(machines) > 1 else "")
