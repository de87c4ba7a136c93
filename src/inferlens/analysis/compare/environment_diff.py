"""How two sides of a comparison differ besides what is compared, and which of that makes a comparison meaningless.

*Unlike* is what the same software would be faster or slower by: the machine, how many processors may be used, the GPU
with its power limit and its driver, the inputs. Everything else may well be the very subject of the comparison:
libraries, Python, the revision, the weights, this program, how much was measured. It is said, and no more. What only
one side knows counts as a difference, but for the power limit, which old records do not tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from inferlens.analysis.interference.samples import card
from inferlens.errors import InferlensError, one_line
from inferlens.record.record import IN_TURNS, Record
from inferlens.units import byte_count, duration, percent, plural

UNKNOWN = "unknown"
NOT_THERE = "not there"
# Variables by which a library chooses its processors, or by which every call waits for the GPU.
UNLIKE_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY",
    "CUDA_LAUNCH_BLOCKING",
)  # fmt: skip
# Systems and drivers keep a little memory to themselves, now more, now less.
_SLACK_OF_MEMORY = 0.05
_SLACK_OF_POWER = 1.0  # watts

Pair = tuple[Record, Record]
Found = tuple[str, str, str, bool]


class Difference(Struct, frozen=True):
    """One field in which base and candidate differ.

    Attributes:
        field: its name, for people.
        base, candidate: the two values, as text.
        unlike: whether it makes the comparison meaningless.
        cases: how many cases it is about.
    """

    field: str
    base: str
    candidate: str
    unlike: bool
    cases: int


def differences(pairs: Sequence[Pair]) -> tuple[Difference, ...]:
    """What differs within the pairs of a base's and a candidate's record, what is unlike first."""
    counts = Counter(found for pair in pairs for found in dict.fromkeys(_of_pair(*pair)))
    every = [Difference(*found, cases=count) for found, count in counts.items()]
    return tuple(sorted(every, key=lambda difference: not difference.unlike))


def refusal(unlike: Sequence[Difference], cases: int) -> InferlensError:
    """The error that names what is unlike."""
    lines = [one_line(f"{one.field}: {one.base} / {one.candidate}{about(one, cases)}") for one in unlike]
    return InferlensError(
        "\n  ".join(["Base and candidate were not measured under the same conditions (base / candidate):", *lines]),
        expected="the same machine, driver and inputs on both sides",
        hint="to measure both on one machine, or --unlike to compare all the same",
    )


def about(difference: Difference, cases: int) -> str:
    """How many of the cases a difference is about, in brackets; nothing if it is all of them."""
    return "" if difference.cases == cases else f" ({difference.cases} of {plural(cases, 'case')})"


def _of_pair(base: Record, candidate: Record) -> Iterator[Found]:
    on_gpu = base.case.device != "cpu"
    for field, read, unlike in (*_MACHINE, *(_GPU if on_gpu else ()), *_PROGRAM):
        yield from _differing(field, read(base), read(candidate), unlike)
    mine, theirs = base.environment, candidate.environment
    yield from _memories("memory", mine.memory, theirs.memory, unlike=False)
    if on_gpu:
        one, other = (next((gpu.memory for gpu in each.gpus), None) for each in (mine, theirs))
        yield from _memories("GPU memory", one, other, unlike=True)
        limits = _power_limit(base), _power_limit(candidate)
        if None not in limits and abs((limits[0] or 0) - (limits[1] or 0)) > _SLACK_OF_POWER:
            yield "GPU power limit", f"{limits[0]:g} W", f"{limits[1]:g} W", True
    yield from _mappings(mine.variables, theirs.variables, UNLIKE_VARIABLES)
    yield from _mappings(mine.libraries, theirs.libraries)
    if base.status == candidate.status == "ok":  # one that failed may not have got as far as its model
        for field, read, unlike in _MODEL:
            yield from _differing(field, read(base), read(candidate), unlike)


def _differing(field: str, base: str, candidate: str, unlike: bool) -> Iterator[Found]:
    if base != candidate:
        yield field, base or UNKNOWN, candidate or UNKNOWN, unlike


def _mappings(base: Mapping[str, str], candidate: Mapping[str, str], unlike: Sequence[str] = ()) -> Iterator[Found]:
    for name in dict.fromkeys([*base, *candidate]):
        yield from _differing(name, base.get(name, NOT_THERE), candidate.get(name, NOT_THERE), name in unlike)


def _memories(field: str, base: int | None, candidate: int | None, unlike: bool) -> Iterator[Found]:
    if base and candidate and abs(base - candidate) <= _SLACK_OF_MEMORY * max(base, candidate):
        return
    one, other = (byte_count(size) if size else "" for size in (base, candidate))
    yield from _differing(field, one, other, unlike)


def _power_limit(record: Record) -> float | None:
    """That of the GPU which was watched, or of all GPUs where none was; ``None`` if these are not the same."""
    watched = record.machine.gpu_uuid if record.machine else ""
    limits = {gpu.power_limit for gpu in record.environment.gpus if not watched or gpu.uuid == watched}
    return limits.pop() if len(limits) == 1 else None


def _names(record: Record) -> str:
    """``NVIDIA H200``, or ``8 x NVIDIA H200``."""
    counts = Counter(gpu.name for gpu in record.environment.gpus)
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())


def _driver(record: Record) -> str:
    cuda = record.environment.cuda_driver
    return record.environment.driver + (f" (CUDA {cuda})" if cuda else "")


def _here(name: str) -> Callable[[Record], str]:
    """A field of the environment."""
    return lambda record: _number(getattr(record.environment, name))


def _number(value: int | str | None, absent: str = "") -> str:
    return absent if value is None else value if isinstance(value, str) else f"{value:,}"


def _time(seconds: float | None, absent: str = "") -> str:
    return absent if seconds is None else duration(seconds)


_Fields = tuple[tuple[str, Callable[[Record], str], bool], ...]
_MACHINE: _Fields = (
    ("CPU", _here("cpu"), True),
    ("CPU cores", _here("cpu_cores"), True),
    ("CPU threads", _here("cpu_threads"), True),
    ("CPU governor", _here("governor"), True),
)
_GPU: _Fields = (
    ("GPUs", _names, True),
    ("driver", _driver, True),
    ("GPU card", lambda record: card(record)[:16], False),
)
_PROGRAM: _Fields = (
    ("system", _here("system"), False),
    ("container", _here("container"), False),
    ("Python", _here("python"), False),
    ("inferlens", _here("inferlens"), False),
    ("git revision", _here("git_revision"), False),
    # Of the budget, not the deadline, which ends a case and changes no number.
    ("mode", lambda record: record.budget.mode, False),
    ("warm-up", lambda record: _number(record.budget.warmup, "until steady"), False),
    ("least warm-up", lambda record: _time(record.budget.warmup_seconds), False),
    ("iterations", lambda record: _number(record.budget.iterations, "not fixed"), False),
    ("seconds", lambda record: _time(record.budget.seconds, "not fixed"), False),
    ("stop", lambda record: record.budget.stop, False),
    ("half-width", lambda record: percent(record.budget.half_width), False),
    ("max time", lambda record: _time(record.budget.max_time, "by default"), False),
)
_MODEL: _Fields = (
    ("inputs", lambda record: ", ".join(map(str, record.model.inputs)), True),
    ("parameters", lambda record: _number(record.model.parameters), False),
    ("weights", lambda record: record.model.weights_sha256[:12] or record.model.weights, False),
    ("clock", lambda record: ", ".join(dict.fromkeys(each.clock for each in record.measurements)), False),
    ("measured", lambda record: "in turns" if record.facts.get(IN_TURNS) else "alone", False),
)
