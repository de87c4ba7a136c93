"""``inferlens export --best``: the model's file, a short script that runs it, and the packages that this needs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from inferlens.backends.abilities import Deployer
from inferlens.errors import InferlensError, Unsupported
from inferlens.execution.deploy import build
from inferlens.execution.deploy.check import check_script
from inferlens.execution.deploy.chosen import chosen
from inferlens.execution.protocol import TaskResult
from inferlens.measure import environment
from inferlens.record.record import Record
from inferlens.units import listing


def write(
    record: Record, folder: Path, output: Path, *, rebuild: bool = False, trust: bool = False, **words: Any
) -> TaskResult[None]:
    """Writes what runs a record's case without this library into the new folder ``output``.

    That is the model's file, the script ``run.py`` and ``requirements.txt``. The script is run once, and its outputs
    are checked. ``words``: ``timeout`` and ``phase``, as of :func:`inferlens.execution.deploy.build.partition`. Raises
    InferlensError if it does not fit this machine, its backend has no such files, or the script does not give the
    right outputs; nothing is left then.
    """
    way = chosen(record, folder, rebuild=rebuild)
    if not isinstance(way.backend, Deployer):
        hint = listing(build.able(Deployer))
        raise Unsupported(f"What {way.case.backend_label} runs is in no file.", expected=f"a case of {hint}")
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise InferlensError(f"{output} is there already.", expected="a new folder, or an empty one")
    path = output / f"model{way.backend.deployed_as(way.case)}"
    try:
        words["cache"] = way.cache or build.CACHE
        given = {"known": way.known, "exported": str(way.exported or "")}
        done = build.deploy(path, way.case, trust=trust, rebuild=rebuild, **given, **words)
        if not (rebuild or way.known):
            way.check_weights(done.model.weights_sha256 if done.model else "")
        (output / "run.py").write_text(way.backend.script(way.case, path.name, record.model.inputs))
        versions = environment.collect().libraries if rebuild else record.environment.libraries
        lines = [f"{name}=={versions[name]}\n" for name in way.backend.packages(way.case) if name in versions]
        (output / "requirements.txt").write_text("".join(lines))
        check_script(output / "run.py", way, trust=trust, rebuild=rebuild, **words)
    except BaseException:
        shutil.rmtree(output, ignore_errors=True)
        raise
    return done
