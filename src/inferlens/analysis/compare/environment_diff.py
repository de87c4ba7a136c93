"""How two sides of a comparison differ besides what is compared, and which of that makes a comparison meaningless.

*Unlike* is what the same software would be faster or slower by: the machine, how many processors may be used, the GPU
with its power limit and its driver, the inputs. Everything else may well be the very subject of the comparison:
libraries, Python, the revision, the weights, this program, how much was measured. It is said, and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from inferlens.errors import InferlensError, one_line
from inferlens.record.display import Struct
from inferlens.record.record import IN_TURNS, Record, card_name
from inferlens.units import byte_count, duration, percent, plural

UNKNOWN = "unknown"
NOT_THERE = "not there"
POWER_LIMIT = "GPU power limit"
REVISION = "git revision"
# The last are variables by which a library chooses its processors, or by which every call waits for the GPU.
UNLIKE = frozenset((
    "CPU", "CPU cores", "CPU threads", "CPU governor", "GPUs", "driver", "GPU memory", POWER_LIMIT, "inputs",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY",
    "CUDA_LAUNCH_BLOCKING",
))  # fmt: skip
_SLACK = 0.02  # systems and drivers keep a little memory to themselves, now more, now less, and round power limits

Pair = tuple[Record, Record]


class Difference(Struct, frozen=True):
    """One field in which base and candidate differ; ``unlike``: whether it makes the comparison meaningless."""

    field: str
    base: str
    candidate: str
    unlike: bool
    cases: int


def differences(pairs: Sequence[Pair]) -> tuple[Difference, ...]:
    """What differs within the pairs of a base's and a candidate's record, what is unlike first."""
    counts = Counter(item for pair in pairs for item in _of_pair(*pair))
    every = [Difference(*item, unlike=item[0] in UNLIKE, cases=count) for item, count in counts.items()]
    return tuple(sorted(every, key=lambda difference: not difference.unlike))


def sentence(differences: Sequence[Difference]) -> str:
    """The differences of one pair, in a few words: ``torch 2.9.1 / 2.14.1``; what only one has comes last."""
    ordered = sorted(differences, key=lambda difference: NOT_THERE in (difference.base, difference.candidate))
    return ", ".join(
        one_line(f"{difference.field} {difference.base} / {difference.candidate}") for difference in ordered
    )


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


def _of_pair(base: Record, candidate: Record) -> Iterator[tuple[str, str, str]]:
    """Name and both texts of each field that differs."""
    ran = base.status == candidate.status == "ok"  # one that failed may not have got as far as its model
    one, other = (_fields(record, ran) for record in (base, candidate))
    for name in dict.fromkeys([*one, *other]):
        mine, theirs = one.get(name, NOT_THERE), other.get(name, NOT_THERE)
        if isinstance(mine, float) and isinstance(theirs, float):
            same = abs(mine - theirs) <= _SLACK * max(mine, theirs)
        else:
            same = mine == theirs or (name == POWER_LIMIT and "" in (mine, theirs))  # old records do not tell it
        if not same:
            yield name, _text(name, mine), _text(name, theirs)


def _fields(record: Record, of_model: bool) -> dict[str, str | float]:
    """What may differ: texts, and sizes as numbers; empty where it is not known."""
    here, budget, model = record.environment, record.budget, record.model
    fields: dict[str, str | float] = {
        "CPU": here.cpu, "CPU cores": _number(here.cpu_cores), "CPU threads": _number(here.cpu_threads),
        "CPU governor": here.governor,
    }  # fmt: skip
    if record.case.device != "cpu":
        counts = Counter(gpu.name for gpu in here.gpus)
        cuda = f" (CUDA {here.cuda_driver})" if here.cuda_driver else ""
        fields["GPUs"] = ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())
        fields |= {"driver": here.driver + cuda, "GPU card": card_name(here)}
    # What may make a model faster or slower comes first: people see the first few.
    of_gpus = () if record.case.device != "cpu" else ("nvidia-", "triton")
    fields |= {REVISION: here.git_revision} if record.case.runs_own_code else {}
    fields |= {name: version for name, version in here.libraries.items() if not name.startswith(of_gpus)}
    fields |= {
        **here.variables, "Python": here.python, "system": here.system, "container": here.container,
        "inferlens": here.inferlens, "mode": budget.mode, "warm-up": _number(budget.warmup, "until steady"),
        "least warm-up": duration(budget.warmup_seconds), "iterations": _number(budget.iterations, "not fixed"),
        "seconds": "not fixed" if budget.seconds is None else duration(budget.seconds),
        "half-width": percent(budget.half_width),
        "max time": "by default" if budget.max_time is None else duration(budget.max_time),
        "memory": float(here.memory or 0) or "",
    }  # fmt: skip
    if record.case.device != "cpu":
        fields["GPU memory"] = float(next((gpu.memory or 0 for gpu in here.gpus), 0)) or ""
        fields[POWER_LIMIT] = _power_limit(record) or ""
    if of_model:
        fields |= {
            "inputs": ", ".join(map(str, model.inputs)), "parameters": _number(model.parameters),
            "weights": model.weights_sha256[:12] or model.weights,
            "clock": ", ".join(dict.fromkeys(measurement.clock for measurement in record.measurements)),
            "measured": "in turns" if record.facts.get(IN_TURNS) else "alone",
        }  # fmt: skip
    return fields


def _power_limit(record: Record) -> float | None:
    """That of the GPU which was watched, or of all GPUs where none was; ``None`` if these are not the same."""
    watched = record.machine.gpu_uuid if record.machine else ""
    limits = {gpu.power_limit for gpu in record.environment.gpus if not watched or gpu.uuid == watched}
    return limits.pop() if len(limits) == 1 else None


def _number(value: int | None, absent: str = "") -> str:
    return absent if value is None else f"{value:,}"


def _text(name: str, value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:g} W" if name == POWER_LIMIT else byte_count(value)
    return value or UNKNOWN
