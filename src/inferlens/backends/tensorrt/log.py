"""What TensorRT says while it works: warnings and errors go to the case's log, errors are kept for the message."""

from __future__ import annotations

import functools
import re
import sys
from typing import Any, Protocol, cast

from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.errors import one_line

WORDS = ("internal error", "error", "warning")
# Said after every other error on a machine without a driver; says nothing of the cause.
ECHO = re.compile(r"\[checkMacros\.cpp::catchCudaError::\d+\]")
# Places in TensorRT's own source and the function that was called, which say nothing to its users.
PLACES = re.compile(
    r"\s*In \w+ at [^\s)]+|^\s*\[\d+\]\s*|^\S+\.cpp:\d+:\s*|\[\S+\.\w+:\d+: \w+\]\s*|^I[A-Z]\w+::\w+:\s*"
)
CODE = re.compile(r"^Error Code \d+: ([\w ]+?) [( ]+(.*?)[) ]*$")
LONGEST = 600


class Log(Protocol):
    """A logger of a flavour; ``errors`` are its errors' texts in order."""

    errors: list[str]


def log(flavour: Flavour) -> Log:
    """A new logger. It must outlive what it was given to: builder, parser, runtime."""
    return cast("Log", _kind(flavour.module)())


@functools.lru_cache(maxsize=2)
def _kind(module: Any) -> Any:
    """The class of a module's loggers, which must be a subclass of the module's own."""

    class _Log(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            """Called from TensorRT's threads, which an exception would take down; so nothing here raises."""
            try:
                number = int(severity)
                if number < len(WORDS):
                    sys.stdout.write(f"{WORDS[number]}: {message}\n")
                if number <= 1:
                    self.errors.append(message)
            except Exception:
                return

    return _Log


def condensed(errors: list[str], otherwise: str = "no reason given") -> str:
    """What the errors say, in one line: each once, without the places in TensorRT's own source."""
    told: list[str] = []
    for error in errors:
        lines = [PLACES.sub("", line).strip() for line in error.splitlines() if not ECHO.search(line)]
        text = one_line(CODE.sub(r"\1: \2", " ".join(filter(None, lines))).strip(" .:()"))
        text += ")" * (text.count("(") - text.count(")"))  # of those at its end, the ones that belong to it
        if text and text not in told:
            told.append(text)
    return "; ".join(told)[:LONGEST] or otherwise
