"""``inferlens modules``: the model's modules, with every backend side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from inferlens.cli import options

DEPTH = "How deep modules are unfolded. [dim]Default: to about 40 rows in tables, all in CSV and JSON.[/dim]"
REFERENCE = "The case of the first column, such as 'onnxruntime:cpu fp32'. \
[dim]Default: the plain one that outputs were checked against, or else the first that ran.[/dim]"
LEVEL = "Whose times are shown: layer or kernel. [dim]Default: kernel if all that ran have kernels traced to modules, \
or else layer.[/dim]"
FUSED = "Layers fused from several modules: whole (to the deepest module that contains them) or split (equally)."


def modules(
    paths: options.Profiles,
    level: Annotated[str | None, typer.Option(help=LEVEL)] = None,
    depth: Annotated[int | None, typer.Option(min=1, help=DEPTH)] = None,
    reference: Annotated[str | None, typer.Option(help=REFERENCE)] = None,
    fused: Annotated[str, typer.Option(help=FUSED)] = "whole",
    format: options.Format = "table",
) -> None:
    """Show where the time goes by module of the model: modules as rows, backends as columns.

    Profiles of one model, the same inputs and one machine share a table. What no module can be named for has a row of
    its own, so that every column adds up to its whole: of layers to a profiled run, of kernels to all kernels.
    """
    from inferlens.cli import screen
    from inferlens.views.profiled.cases import groups
    from inferlens.views.profiled.modules import document

    loaded = groups(screen.profiles(paths, format))
    shown = document(loaded, level=level, depth=depth, reference=reference, fused=fused)  # type: ignore[arg-type]
    screen.document(shown, format)
