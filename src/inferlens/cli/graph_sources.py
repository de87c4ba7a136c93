"""What ``inferlens graph`` can draw: profiles, ONNX files and engines' information, told apart by their content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inferlens.analysis.profile.graph import Source, source_of
from inferlens.analysis.profile.graph_engine import engine_source, is_engine_information
from inferlens.backends.onnx.layers import onnx_layers
from inferlens.errors import InferlensError
from inferlens.record.profile_store import load_profiles
from inferlens.units import plural
from inferlens.views.plain import plain
from inferlens.views.profiled.cases import groups


@dataclass
class ModelInfo:
    """Layers to draw, what all of them are of, and what could not be read."""

    title: str = ""
    sources: list[Source] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def sources_of(paths: Sequence[Path]) -> ModelInfo:
    """Everything that can be drawn under ``paths``.

    Raises:
        InferlensError: if a path does not exist, or there is nothing to draw.
    """
    found = ModelInfo()
    titles: list[str] = []
    profiles: list[Path] = []
    for path in paths:
        source = _file(path)
        if source is None:
            profiles.append(path)
        else:
            found.sources.append(source)
            titles.append(path.name)
    if profiles:
        _profiles(profiles, found, titles)
    if not found.sources:
        raise InferlensError(f"There is nothing to draw: {' '.join(found.problems)}", hint="inferlens profile MODEL")
    found.title = plain(" and ".join(dict.fromkeys(titles)))
    return found


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


def _profiles(paths: Sequence[Path], found: ModelInfo, titles: list[str]) -> None:
    loaded = load_profiles(paths)
    found.problems += loaded.problems
    for group in groups(loaded, "layer"):
        for case in group:
            source = source_of(case.profile, case.name, case.headline)
            if isinstance(source, str):
                found.problems.append(plain(f"Not drawn: {case.name}. {source}"))
            elif not source.layers:
                found.problems.append(plain(f"Not drawn: {case.name}. It has no layers."))
            else:
                found.sources.append(source)
                titles.append(case.profile.case.model)
