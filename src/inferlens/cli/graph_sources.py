"""What ``inferlens graph`` can draw: profiles, ONNX files and engines' information, told apart by their content."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inferlens.analysis.profile.graph import Source, source_of
from inferlens.analysis.profile.graph_engine import engine_source, is_engine_information
from inferlens.backends.onnx.layers import onnx_layers
from inferlens.errors import InferlensError
from inferlens.record.profile_store import LoadedProfiles, load_profiles
from inferlens.units import plural
from inferlens.views.plain import plain
from inferlens.views.profiled.cases import groups


def sources_of(paths: Sequence[Path]) -> tuple[str, list[Source], list[str]]:
    """What all of them are of, everything that can be drawn under ``paths``, and what could not be read.

    Raises:
        InferlensError: if a path does not exist, or there is nothing to draw.
    """
    sources, problems, titles = [], [], []
    profiles: list[Path] = []
    for path in paths:
        source = _file(path)
        if source is None:
            profiles.append(path)
        else:
            sources.append(source)
            titles.append(path.name)
    loaded = load_profiles(profiles) if profiles else LoadedProfiles()
    problems += loaded.problems
    for case in (case for group in groups(loaded, "layer") for case in group):
        found = source_of(case.profile, case.name, case.headline)
        if isinstance(found, str) or not found.layers:
            reason = found if isinstance(found, str) else "It has no layers."
            problems.append(plain(f"Not drawn: {case.name}. {reason}"))
        else:
            sources.append(found)
            titles.append(case.profile.case.model)
    if not sources:
        raise InferlensError(f"There is nothing to draw: {' '.join(problems)}", hint="inferlens profile MODEL")
    return plain(" and ".join(dict.fromkeys(titles))), sources, problems


def _file(path: Path) -> Source | None:
    """An ONNX file, or an engine's information; ``None`` for anything else."""
    if not path.is_file():
        return None
    if path.suffix.lower() == ".onnx":
        told = onnx_layers(path)
        about = f"ONNX file · {plural(len(told.layers), 'node')} · no times"
        return Source(title=plain(path.name), about=about, layers=told.layers, inputs=told.inputs, outputs=told.outputs,
                      notes=told.notes)  # fmt: skip
    try:
        with path.open("rb") as file:
            start = file.read(1 << 16)
            if not is_engine_information(start):
                return None
            return engine_source(start + file.read(), plain(path.name))
    except OSError as error:
        raise InferlensError(f"{path} cannot be read: {error.strerror}.") from error
