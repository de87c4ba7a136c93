"""The account of one call of a model: which module's operators read and write which tensors.

A tensor is known by its storage, so a view is what it looks at. Bytes are counted where a tensor crosses the border of
a module's call: what its own operators hand to each other is not, and what they read twice is read once. Of a view its
own elements count, never more than its storage has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from inferlens.record.work import ModuleWork, OperatorWork, Work

MOST = 20_000  # operators that are kept one by one


@dataclass(frozen=True)
class Seen:
    """A tensor as an operator sees it: its storage, which part of it, and how many bytes that and all of it has."""

    storage: Hashable
    part: Hashable
    bytes: int
    whole: int


class Parts:
    """The parts of one storage that were seen, each counted once."""

    def __init__(self) -> None:
        self._seen: set[Hashable] = set()
        self._bytes = 0

    def add(self, tensor: Seen) -> int:
        """How many bytes ``tensor`` adds."""
        if tensor.part in self._seen:
            return 0
        self._seen.add(tensor.part)
        before = self._bytes
        self._bytes = min(before + tensor.bytes, max(tensor.whole, before))
        return self._bytes - before


@dataclass
class Sum:
    """What a module, or one call of an operator, has done so far: fields of ModuleWork and of OperatorWork."""

    flops: float = 0.0
    weights: int = 0
    inputs: int = 0
    outputs: int = 0
    sources: Counter[Any] = field(default_factory=Counter)
    returned: int = 0


@dataclass
class ModuleSum(Sum):
    """What belongs to a module alone."""

    kind: str = ""
    calls: int = 0
    operators: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class ModuleCall:
    """One call of a module, and what it has read."""

    path: str
    read: dict[Hashable, Parts] = field(default_factory=dict)


@dataclass(eq=False)
class Made:
    """What a call has written to a storage: by which operator, which part, how many bytes.

    ``read`` is what was read of it: by other calls than that one, and by any operator.
    """

    call: ModuleCall
    operator: int
    part: Hashable
    bytes: int
    read: tuple[Parts, Parts] = field(default_factory=lambda: (Parts(), Parts()))


class ByteCounter:
    """Adds up operators as they come; what they read and is neither ``given``, an input, nor made is a weight."""

    def __init__(self, given: Iterable[Hashable]) -> None:
        self._given = set(given)
        self._made: dict[Hashable, list[Made]] = {}  # the newest first
        self._modules: dict[str, ModuleSum] = {}
        self._operators: list[Sum] = []
        self._names: list[tuple[str, str]] = []  # of each operator: its module's path, and its own
        self._uncovered: Counter[str] = Counter()

    def begin(self, path: str, kind: str) -> ModuleCall:
        """A module is called."""
        self._modules.setdefault(path, ModuleSum(kind=kind)).calls += 1
        return ModuleCall(path)

    def operator(
        self, call: ModuleCall, name: str, flops: float | None, reads: Iterable[Seen], writes: Iterable[Seen]
    ) -> None:
        """One of the call's own operators ran; ``flops`` is ``None`` where they are not known."""
        module_sum = self._modules[call.path]
        module_sum.operators[name] += 1
        module_sum.flops += flops or 0.0
        if flops is None:
            self._uncovered[name] += 1
        place, own, seen = len(self._operators), Sum(flops=flops or 0.0), dict[Hashable, Parts]()
        self._operators.append(own)
        self._names.append((call.path, name))
        for tensor in reads:
            for item, portion in self._makers(tensor):
                if not item or item.call is not call:
                    self._read(module_sum, call.read, item, portion, 0)
                self._read(own, seen, item, portion, 1)
        for tensor in writes:
            before = self._made.get(tensor.storage, []) if tensor.bytes < tensor.whole else []
            others = (item for item in before if item.part != tensor.part)
            self._made[tensor.storage] = [Made(call, place, tensor.part, tensor.bytes), *others]

    def returned(self, tensors: Iterable[Seen]) -> None:
        """The model has returned these."""
        for tensor in tensors:
            for item, portion in self._makers(tensor):
                if item:
                    for level in (0, 1):
                        mine = self._writer(item, level)[1]
                        mine.outputs += item.read[level].add(portion)
                        mine.returned += portion.bytes

    def work(self, note: str) -> Work:
        """All of it."""
        operators = zip(self._names, self._operators, strict=True) if len(self._operators) <= MOST else ()
        return Work(
            modules=tuple(ModuleWork(module=path, **vars(module_sum)) for path, module_sum in self._modules.items()),
            operators=tuple(OperatorWork(module=path, operator=name, **vars(item)) for (path, name), item in operators),
            uncovered=dict(self._uncovered),
            note=note,
        )

    def _makers(self, tensor: Seen) -> Iterator[tuple[Made | None, Seen]]:
        """Who made how much of a tensor; ``None``: what nobody has made, a weight or one of the model's inputs.

        Of a part, who wrote just that comes first; then who wrote last: how other parts overlap is not looked at.
        """
        left = tensor.bytes
        makers = self._made.get(tensor.storage, [])
        if tensor.bytes < tensor.whole:
            makers = sorted(makers, key=lambda maker: maker.part != tensor.part)
        for item in makers:
            size = min(left, item.bytes)
            left -= size
            yield item, Seen(tensor.storage, tensor.part, size, item.bytes)
            if not left:
                return
        yield None, Seen(tensor.storage, tensor.part, left, tensor.whole)

    def _read(self, mine: Sum, seen: dict[Hashable, Parts], made: Made | None, portion: Seen, level: int) -> None:
        """Adds to what a module (0) or an operator (1) has read, which has ``seen`` so much already."""
        # What is written anew, in place, is another tensor in the same storage.
        size = seen.setdefault(made or portion.storage, Parts()).add(portion)
        if made or portion.storage in self._given:
            mine.inputs += size
        else:
            mine.weights += size
        if made:
            maker, theirs = self._writer(made, level)
            mine.sources[maker] += size
            theirs.outputs += made.read[level].add(portion)

    def _writer(self, made: Made, level: int) -> tuple[str | int, Sum]:
        """The module (0) or the operator (1) that has made something: its path or place, and what it has done."""
        place = made.operator
        return (place, self._operators[place]) if level else (made.call.path, self._modules[made.call.path])
