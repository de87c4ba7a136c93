"""A comparison for other programs: JSON with a schema name, seconds and calls per second, null for what is absent."""

from __future__ import annotations

import msgspec

from inferlens.analysis.compare.cases import Compared
from inferlens.views.compared.lines import full_names
from inferlens.views.compared.sentences import sentences

SCHEMA = "inferlens.comparison/1"


def render(compared: Compared) -> str:
    """Every field of every case, the exit code, and the closing sentences."""
    cases = [
        {"name": name, "digest": line.of.case.digest, **msgspec.structs.asdict(line.of)}
        for name, line in full_names(compared)
    ]
    document = {
        "schema": SCHEMA,
        "exit_code": compared.exit_code,
        "sentences": sentences(compared),
        **msgspec.structs.asdict(compared),
        "cases": cases,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"
