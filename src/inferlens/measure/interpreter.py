"""Whether the interpreter of another virtual environment can do the work of this one: asked before anything runs there.

Both sides must be one Inferlens, file by file: what is measured by other code is not measured alike, and what crosses
between the two has one form.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import inferlens
from inferlens.errors import InferlensError, installing, one_line

EXPECTED = "the Python of a virtual environment, such as old/bin/python"
LEAST = (3, 10)
TIMEOUT = 60.0
MARK = "inferlens says "  # before the answer, for others may print, too
UNSEEN = ("cli", "views")  # rooms of which a measurement sees nothing
# Any Python understands it, so that one that is too old can say so.
ASK = f"""
import sys
sys.path = [*filter(None, sys.path)]
said = {{"python": sys.version_info[:3]}}
try:
    import inferlens
    said["version"] = inferlens.__version__
    from inferlens.measure.interpreter import code
    from inferlens.execution import worker
    said["code"] = code()
except Exception as error:
    said["error"] = str(error)
    said["missing"] = getattr(error, "name", None)
import json
print("{MARK}" + json.dumps(said))
"""


@cache
def code() -> str:
    """A hash of what measures, which tells this Inferlens from others of its version, such as changed checkouts."""
    found, root = hashlib.sha256(), Path(inferlens.__file__).parent
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if place.parts[0] not in UNSEEN:
            found.update(place.as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def check(interpreter: str, variables: Mapping[str, str]) -> None:
    """Refuse an interpreter that is none, is too old, or has no Inferlens or another one, and say what helps."""
    path = Path(interpreter)
    if path.is_dir():
        inside = path / "bin" / "python"
        hint = str(inside) if inside.exists() else ""
        raise InferlensError(f"{interpreter} is a folder.", expected=EXPECTED, hint=hint)
    if not path.exists():
        hint = shutil.which(os.path.expanduser(interpreter)) or ""
        raise InferlensError(f"There is no interpreter {interpreter}.", expected=EXPECTED, hint=hint)
    said = _said(path, interpreter, variables)
    version = ".".join(map(str, said["python"]))
    if tuple(said["python"]) < LEAST:
        least = ".".join(map(str, LEAST))
        raise InferlensError(f"{interpreter} is Python {version}.", expected=f"Python {least} or newer")
    hint = in_environment(interpreter, installing("torch"))
    mine = inferlens.__version__
    if "version" not in said and said.get("missing") in ("inferlens", None):
        raise InferlensError(f"{interpreter} has no Inferlens.", expected=f"Inferlens {mine}, as here", hint=hint)
    if said.get("version", mine) != mine:
        what = f"{interpreter} has Inferlens {one_line(str(said['version']))}."
        raise InferlensError(what, expected=f"{mine}, as here", hint=hint)
    lacking = said.get("missing")
    if lacking and not lacking.startswith("inferlens"):
        raise InferlensError(f"Inferlens lacks {lacking} in the environment of {interpreter}.", hint=hint)
    if said.get("code") != code():
        what = f"{interpreter} has another Inferlens {mine}: its code is not that of this one."
        raise InferlensError(what, expected="one Inferlens in all environments", hint=hint)


def _said(path: Path, interpreter: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """What it says of itself. Raises InferlensError if it says nothing of the kind."""
    refusal = InferlensError(f"{interpreter} is not a Python interpreter.", expected=EXPECTED)
    try:
        done = subprocess.run(
            [os.path.abspath(path), "-c", ASK],
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
        said = json.loads(done.stdout.decode(errors="replace").rpartition(MARK)[2])
        return {**said, "python": [*map(int, said["python"])]}
    except subprocess.TimeoutExpired:
        raise InferlensError(f"{interpreter} did not answer within {TIMEOUT:g} s.", expected=EXPECTED) from None
    except (OSError, ValueError, TypeError, LookupError):
        raise refusal from None


def in_environment(interpreter: str, hint: str) -> str:
    """A hint of what to install, for the environment of an interpreter."""
    return f"{interpreter} -m {hint}" if interpreter and hint.startswith("pip install") else hint
