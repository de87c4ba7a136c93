"""What goes wrong, said once and clearly.

Every error a user can cause or mend is an :class:`InferlensError`. It says what happened, what was expected, and what
to try; the command line prints it without a traceback and exits with code 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType


def printable(text: str) -> str:
    """``text`` without characters that steer a terminal; line ends stay."""
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)


def one_line(text: str) -> str:
    """The same of a name in a message, which must not look like a line of ours."""
    return " ".join(printable(text).split())


class InferlensError(Exception):
    """A problem a user can act on. Names in it may come from anywhere: what steers a terminal is left out.

    Args:
        expected: what was expected instead, if that is not obvious.
        hint: what to try: a command, a flag, another value.
    """

    def __init__(self, what: str, *, expected: str = "", hint: str = "") -> None:
        super().__init__(printable(what))
        self.what = printable(what)
        self.expected = printable(expected)
        self.hint = printable(hint)

    @property
    def sentence(self) -> str:
        """What happened and what was expected, without what to try."""
        return f"{self.what} Expected: {self.expected}." if self.expected else self.what

    def __str__(self) -> str:
        return f"{self.sentence} Try: {self.hint}" if self.hint else self.sentence


def unwritable(what: object, error: OSError, hint: str) -> InferlensError:
    """That a file or folder cannot be written, as on a disk that is full."""
    return InferlensError(f"{what} cannot be written: {error.strerror}.", hint=hint)


class Unsupported(InferlensError):
    """What was asked cannot be done by this backend, on this device or with this model; a row with a reason."""


class MissingLibrary(Unsupported):
    """A library that is not installed; the hint is the command that installs it."""

    def __init__(self, library: str, *, extra: str) -> None:
        super().__init__(f"{library} is not installed.", hint=installing(extra))


def installing(extra: str) -> str:
    """The command that installs what an extra brings, from the checkout that this is, if it is one."""
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e '{'.' if checkout == Path.cwd() else checkout}[{extra}]'"
    return f"pip install 'inferlens[{extra}]'"  # pip asks no index for what is installed already


def library(name: str, *, extra: str) -> ModuleType:
    """The library of that name, imported; where it is not there, ``extra`` is ours that installs it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:  # it, or what it needs
        raise MissingLibrary((error.name or name).partition(".")[0], extra=extra) from error
    except ImportError as error:
        raise Unsupported(f"{name} cannot be imported: {error}.", hint=installing(extra)) from error


SHORT_OF_MEMORY = (
    "out of memory", "outofmemory", "can't allocate memory", "cannot allocate memory", "bad_alloc",
    "failed to allocate",
)  # fmt: skip


def is_short_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, in whatever words its library has for that."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in SHORT_OF_MEMORY)


def suggestion(name: str, known: Iterable[str], limit: int = 3, spelled: Mapping[str, str] | None = None) -> str:
    """Those of ``known`` most like ``name`` as ``"did you mean a or b?"``, each once, or an empty string.

    ``spelled``: how those are written that are not written as they are called.
    """
    near = [
        (spelled or {}).get(close_match, close_match)
        for close_match in get_close_matches(name, sorted(set(known)), n=limit)
    ]
    return f"did you mean {' or '.join(', '.join(near).rsplit(', ', 1))}?" if near else ""


def paths_like(path: Path, *, folders: bool = False) -> str:
    """Near misses of a file, or folder, that is not there, among those beside it: ``"did you mean a/model.onnx?"``."""
    with suppress(OSError):
        beside = {item.name: str(item) for item in path.parent.iterdir() if folders or item.is_file()}
        return suggestion(path.name, beside, spelled=beside)
    return ""


def check_choice(what: str, given: str, known: Iterable[str]) -> None:
    """Raises InferlensError for a word that is not among those known; ``what`` it would be is such as ``format``."""
    choices = list(dict.fromkeys(known))
    if given not in choices:
        near = suggestion(given, choices) if len(choices) > 1 else ""  # the only one is expected anyway
        raise InferlensError(f"There is no {what} '{given}'.", expected=one_of(choices), hint=near)


def one_of(choices: Sequence[str], most: int = 12) -> str:
    """What was expected, where it was one of few: ``one of a, b``, or the only one; of many, the first."""
    shown = ", ".join(choices[:most])
    return shown if len(choices) == 1 else f"one of {shown}{' ...' if len(choices) > most else ''}"
