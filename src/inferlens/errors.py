"""Errors that users can act on, and short reasons from library messages.

Every error that a user can cause or fix is an :class:`InferlensError`. It says what happened, what was expected, and
what to try. The command line prints it without a traceback and exits with code 2.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def printable(text: str) -> str:
    """Return ``text`` without terminal control characters. Line ends stay."""
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)


def one_line(text: str) -> str:
    """Return ``text`` as one printable line, so that a name cannot imitate a line of the output."""
    return " ".join(printable(text).split())


class InferlensError(Exception):
    """A problem that a user can act on. Terminal control characters are removed, because names may come from anywhere.

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
        """The problem and the expectation, without the hint."""
        return f"{self.what} Expected: {self.expected}." if self.expected else self.what

    def __str__(self) -> str:
        return f"{self.sentence} Try: {self.hint}" if self.hint else self.sentence


def unwritable(what: object, error: OSError, hint: str) -> InferlensError:
    """Return the error for a file or folder that cannot be written, for example on a full disk."""
    return InferlensError(f"{what} cannot be written: {error.strerror}.", hint=hint)


class Unsupported(InferlensError):
    """A request that this backend, device or model cannot fulfill. The case gets a row with the reason."""


class MissingLibrary(Unsupported):
    """A missing library. The hint is the command that installs it."""

    def __init__(self, library: str, *, extra: str) -> None:
        super().__init__(f"{library} is not installed.", hint=installing(extra))


def installing(extra: str) -> str:
    """Return the command that installs an extra, from the current checkout if there is one."""
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e '{'.' if checkout == Path.cwd() else checkout}[{extra}]'"
    return f"pip install 'inferlens[{extra}]'"


def library(name: str, *, extra: str) -> ModuleType:
    """Return the imported library. If it is missing, the error suggests the ``extra`` that installs it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:  # it, or what it needs
        raise MissingLibrary((error.name or name).partition(".")[0], extra=extra) from error
    except ImportError as error:
        raise Unsupported(f"{name} cannot be imported: {error}.", hint=installing(extra)) from error


class LateModule:
    """A library that is imported when an attribute of it is read, because importing it takes long.

    Reading costs half a microsecond, so timed code reads beforehand. If the library is missing, the error is that of
    :func:`library`, or Python's own where no ``extra`` installs it.
    """

    def __init__(self, name: str, *, extra: str = "") -> None:
        self._name = name
        self._extra = extra

    def __getattr__(self, attribute: str) -> Any:
        module = sys.modules.get(self._name)
        if module is None:
            module = library(self._name, extra=self._extra) if self._extra else import_module(self._name)
        return getattr(module, attribute)


SHORT_OF_MEMORY = (
    "out of memory", "outofmemory", "can't allocate memory", "cannot allocate memory", "bad_alloc",
    "failed to allocate",
)  # fmt: skip


def is_short_of_memory(error: BaseException) -> bool:
    """Return whether an error reports a lack of memory, in the words of any library."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in SHORT_OF_MEMORY)


def suggestion(name: str, choices: Iterable[str], limit: int = 3, spelled: Mapping[str, str] | None = None) -> str:
    """Return the names in ``choices`` that are most like ``name``: ``"did you mean a or b?"``, or an empty string.

    Args:
        limit: the largest number of names.
        spelled: the text to show for a choice, if it is not the choice itself.
    """
    matches = [(spelled or {}).get(match, match) for match in get_close_matches(name, sorted(set(choices)), n=limit)]
    return f"did you mean {' or '.join(', '.join(matches).rsplit(', ', 1))}?" if matches else ""


def paths_like(path: Path, *, folders: bool = False) -> str:
    """Return near misses of a missing file or folder in the same folder: ``"did you mean a/model.onnx?"``."""
    with suppress(OSError):
        paths = {entry.name: str(entry) for entry in path.parent.iterdir() if folders or entry.is_file()}
        return suggestion(path.name, paths, spelled=paths)
    return ""


def check_choice(what: str, value: str, allowed: Iterable[str]) -> None:
    """Raise InferlensError for a value that is not among the choices. ``what`` is its kind, such as ``format``."""
    choices = list(dict.fromkeys(allowed))
    if value not in choices:
        similar = suggestion(value, choices) if len(choices) > 1 else ""  # the expectation names a single choice
        raise InferlensError(f"There is no {what} '{value}'.", expected=one_of(choices), hint=similar)


def one_of(choices: Sequence[str], most: int = 12) -> str:
    """Return an expectation: ``one of a, b``, or the only choice. A long list ends after ``most`` choices."""
    shown = ", ".join(choices[:most])
    return shown if len(choices) == 1 else f"one of {shown}{' ...' if len(choices) > most else ''}"


# The reason in a library's message, without paths, places in source, stack frames and addresses. No sentence is cut by
# length. The whole text stays in the log of the case (``inferlens show --log``).

LONGEST = 600  # letters, after which a reason ends at the end of a sentence
_WRAPPERS = ("torch.onnx", "torch._dynamo", "torch._inductor", "torch._export")  # their own text repeats the cause
_NO_NEWS = ("RuntimeError", "Exception", "SystemError")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

# A quoted error is the reason of the error that quotes it. The patterns are tried once, from the outside to the inside.
_QUOTED = [
    re.compile(pattern, re.DOTALL | re.MULTILINE)
    for pattern in (
        r"## Exception summary\s+<class '(?:\w+\.)*(?P<kind>\w+)'>(?P<text>: .*)",  # torch.onnx
        r"^backend='[^']*' raised:\n(?P<text>.*)",  # Dynamo
        r"^Traceback[^\n]*\(most recent call last\):\n.*^(?P<text>[\w.]*(?:Error|Exception)\w*: .*)",
        r"\A.*\bCaused by: (?!\()(?P<text>.*)",
        r"Dynamo failed to run FX node.*?: got (?P<kind>\w+)\((?P<quote>['\"])(?P<text>.*?)(?P=quote)\)$",
        r"raised exception (?P<kind>\w+)\((?P<quote>['\"])(?P<text>.*?)(?P=quote)\)$",
        r"Failed running call_\w+ .*?:\n(?P<text>.*)",  # Dynamo before PyTorch 2.8
        r"^Output:\n.*?(?P<text>(?:fatal )?error: [^\n]*)",  # the compiler that Inductor called
    )
]
# From here on a message is advice, or help for those who debug the library. Matched at the beginning of a line.
_REST = re.compile(
    r"\n\s*(?:from user code:|Set TORCH|You can suppress|The error above|The following call raised|While executing %|"
    r"\(Refer to|Exception raised from|frame #|C\+\+ Captured|Stack trace|Caused by: \(|CUDA kernel errors|"
    r"For (?:debugging|more|extended|C\+\+)|Compile with `TORCH|Device-side assertions|Search for `cu|Suggested fixes|"
    r"Hint:|The branch condition|Developer debug|args\[0\]:|consider using data-dependent|compilation terminated|⬆)",
)
_ARGUMENTS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_SOURCE = r"(?<![^\s'\"(\[])[^\s'\"(\[]+\.(?:cpp|cc|cu|cuh|hpp|h|py)"
_CUTS = [
    (re.compile(pattern, re.MULTILINE), instead)
    for pattern, instead in (
        # Python
        (r"^\s*File \"[^\"]+\", line \d+.*$|^\s*[~^]+\s*$|^\s*# File .*$", ""),
        (r"\bat 0x[0-9a-fA-F]+", ""),
        (r"(?<![^\s'\"])[^\s'\"]*(?:site|dist)-packages/(?:[^\s'\"]*/)?", ""),
        # ONNX Runtime: [ONNXRuntimeError] : 1 : FAIL : Load model from m.onnx failed:/src/model.cc:256 Model::Model()
        (r"\[ONNXRuntimeError\] : \d+ : \w+ : ", ""),
        (r"Exception during (?:initialization|loading): |^Error in execution: ", ""),
        (r"Non-zero status code returned while running (\w+) node\. Name:('[^']*') Status Message: ", r"\1 node \2: "),
        (r" node '': ", " node: "),
        (r"(?:Load model from .*? failed:\s*|This is an invalid model\. )+(?:(?:Fatal e|E)rror: )?", ""),
        (
            rf"{_SOURCE}:\d+ (?:[^()\n]*::~?\w+{_ARGUMENTS}(?: const)?(?: \[with [^\]]*\])?|\w+::[\w:~<>]+)\s+"
            r"(?:(?:(?!\. ).)*? was false\. (?=\S))?",
            "",
        ),
        (r" ; GPU=\d+ ; hostname=.*", ""),
        # OpenVINO
        (rf"^Exception from {_SOURCE}:\d+:\s*|^FrontEnd API failed with \w+:\s*|^Summary:\s*|^\s*--? ", ""),
        (rf"(?:Check|Assertion) ('.*?') failed at {_SOURCE}:\d+\b:?(?=\s*[^\s:])", ""),
        # TensorRT: In node 0 (importRange): UNSUPPORTED_NODE: Assertion failed: (isInt32 || isFp32): the reason
        (rf"^(?:\d+: (?=\[)|{_SOURCE}:\d+:? |ERROR: |\[\d+\] |\[\w+\.cpp::[^\]]*\] )+|\[\S+\.\w+:\d+: \w+\] ", ""),
        (r"^I[A-Z]\w+::\w+: |Error Code \d+: |\s*\bIn \w+ at [^\s)]+|\bIn function \w+:\s*", ""),
        (r"\[Error thrown at [^\]]*\]\s*(?:Expected .*? to be true but got false\s+(?=\S))?", ""),
        (r"\bIn node -1 with name:\s+and operator:\s*: ", ""),
        (r"\b([A-Z][\w ]{9,}: )(?=\1)", ""),
        (r"\s*\(\w+\): [A-Z_]{8,}(?=: )|Parameter check failed at: \S+, condition: ", ""),
        (r"Assertion failed: .*? && \"([^\"]*)\"", r"\1"),
        (r"Assertion failed: .*?: (?=[A-Z])", ""),
        (r"\(\s+", "("),
        # PyTorch
        (
            r"Could not [\w ]+ data-dependent expression (.*?) \(unhinted.*",
            r"a branch or size depends on values of a tensor: \1",
        ),
        (r" For more information, run with TORCH_LOGS=\S+", ""),
        (r"<class '([\w.]+)'>", r"\1"),
        (r"^\s*Explanation: ", ": "),
        (rf" ?(?:\bat )?\"?{_SOURCE}\"?:\d+(?:,? please report a bug to PyTorch\.)?", ""),
        (rf"^(?:\w+\.)*(?:{'|'.join(_NO_NEWS)}): ", ""),
    )
]


def reason(error: BaseException | str) -> str:
    """Return the reason of a failure from an error, or from the message of a library: one line without a full stop.

    The reasons of an error and of all its causes are joined. An error that only passes its cause on is left out. A
    built-in type is named, unless it says nothing.
    """
    if isinstance(error, str):
        return _shortened(_condensed(error))
    reasons: dict[str, str] = {}  # a reason with its type, by the reason alone
    chain = [error]
    for link in chain:
        kind, module, cause = type(link).__name__, type(link).__module__, link.__cause__
        ours = isinstance(link, InferlensError)
        text = link.sentence.rstrip(".") if isinstance(link, InferlensError) else _condensed(str(link))
        names_kind = (module == "builtins" and kind not in _NO_NEWS) or " " not in text
        repeats = any(text in reason for reason in reasons) or bool(reasons and " " not in text)
        if not repeats and (cause is None or not module.startswith(_WRAPPERS)):
            reasons = {reason: full for reason, full in reasons.items() if reason not in text}
            reasons[text] = f"{kind}: {text}".rstrip(": ") if names_kind and not ours else text
        if cause is not None and cause not in chain and not ours:
            chain.append(cause)
    return _shortened(": ".join(full.rstrip(":") for full in reasons.values()))


def _condensed(text: str) -> str:
    """Return the reason in a library's text. If nothing would be left, return the text on one line."""
    text = plain = _COLOURS.sub("", text).strip()
    for pattern in _QUOTED:
        if match := pattern.search(text):
            parts = match.groupdict("")
            text = f"{parts.get('kind', '')}{': ' * ('quote' in parts)}{parts['text']}".strip()
    text = _REST.split(text, maxsplit=1)[0]
    for pattern, instead in _CUTS:
        text = pattern.sub(instead, text)
    return re.sub(r"\s+(?=[:.,;](?:\s|$))", "", one_line(text)).strip(" :-").rstrip(".") or one_line(plain)


def _shortened(text: str) -> str:
    """Return the first sentences of ``text`` that fit, at least one. A very long sentence is cut at a comma."""
    if len(text) <= LONGEST:
        return text
    ends = [match.start() for match in re.finditer(r"[.!?](?= [A-Z])", text)]
    fitting = [end for end in ends if end <= LONGEST] or [end for end in ends[:1] if end <= 2 * LONGEST]
    return text[: fitting[-1]] if fitting else f"{text[:LONGEST].rpartition(', ')[0] or text[:LONGEST]}, …"
