"""The account of one call of a model: which module's operators read and write which tensors.

A tensor is known by its storage, so a view is what it looks at. Bytes are counted where a tensor crosses the border of
a module's call: what its own operators hand to each other is not, and what they read twice is read once. Of a view its
own elements count, never more than its storage has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

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
    """What one module has done so far: the fields of a :class:`ModuleWork`."""

    kind: str = ""
    calls: int = 0
    flops: float = 0.0
    weights: int = 0
    inputs: int = 0
    outputs: int = 0
    sources: Counter[str] = field(default_factory=Counter)
    returned: int = 0
    operators: Counter[str] = field(default_factory=Counter)


@dataclass
class OperatorSum:
    """What one call of an operator does: the fields of an :class:`OperatorWork`."""

    module: str
    operator: str
    flops: float = 0.0
    weights: int = 0
    inputs: int = 0
    outputs: int = 0
    sources: Counter[int] = field(default_factory=Counter)
    returned: int = 0


@dataclass(eq=False)
class ModuleCall:
    """One call of a module, and what it has read."""

    path: str
    read: dict[Hashable, Parts] = field(default_factory=dict)


@dataclass(eq=False)
class Made:
    """What a call has written to a storage: by which operator, which part, how many bytes; what was read of it.

    ``left`` is what was read elsewhere than in that call, ``taken`` what was read at all.
    """

    call: ModuleCall
    operator: int
    part: Hashable
    bytes: int
    left: Parts = field(default_factory=Parts)
    taken: Parts = field(default_factory=Parts)


class ByteCounter:
    """Adds up operators as they come.

    Args:
        given: storages of the model's inputs. All that is read and neither given nor made is a weight.
    """

    def __init__(self, given: Iterable[Hashable]) -> None:
        self._given = set(given)
        self._made: dict[Hashable, list[Made]] = {}  # the newest first
        self._sums: dict[str, Sum] = {}
        self._operators: list[OperatorSum] = []
        self._uncovered: Counter[str] = Counter()

    def begin(self, path: str, kind: str) -> ModuleCall:
        """A module is called."""
        mine = self._sums.setdefault(path, Sum(kind))
        mine.calls += 1
        return ModuleCall(path)

    def operator(
        self, call: ModuleCall, name: str, flops: float | None, reads: Iterable[Seen], writes: Iterable[Seen]
    ) -> None:
        """One of the call's own operators ran; ``flops`` is ``None`` where they are not known."""
        mine = self._sums[call.path]
        mine.operators[name] += 1
        mine.flops += flops or 0.0
        if flops is None:
            self._uncovered[name] += 1
        place, seen = len(self._operators), dict[Hashable, Parts]()
        self._operators.append(OperatorSum(call.path, name, flops or 0.0))
        for tensor in reads:
            self._read(call, mine, tensor)
            self._taken(place, seen, tensor)
        for tensor in writes:
            before = self._made.get(tensor.storage, []) if tensor.bytes < tensor.whole else []
            others = (made for made in before if made.part != tensor.part)
            self._made[tensor.storage] = [Made(call, place, tensor.part, tensor.bytes), *others]

    def returned(self, tensors: Iterable[Seen]) -> None:
        """The model has returned these."""
        for tensor in tensors:
            for made, portion in self._makers(tensor):
                if made:
                    mine = self._sums[made.call.path]
                    mine.outputs += made.left.add(portion)
                    mine.returned += portion.bytes
                    own = self._operators[made.operator]
                    own.outputs += made.taken.add(portion)
                    own.returned += portion.bytes

    def work(self, note: str) -> Work:
        """All of it."""
        return Work(
            modules=tuple(ModuleWork(module=path, **vars(each)) for path, each in self._sums.items()),
            operators=tuple(OperatorWork(**vars(each)) for each in self._operators if len(self._operators) <= MOST),
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
            makers = sorted(makers, key=lambda each: each.part != tensor.part)
        for made in makers:
            size = min(left, made.bytes)
            left -= size
            yield made, Seen(tensor.storage, tensor.part, size, made.bytes)
            if not left:
                return
        yield None, Seen(tensor.storage, tensor.part, left, tensor.whole)

    def _taken(self, place: int, seen: dict[Hashable, Parts], tensor: Seen) -> None:
        """What the operator at ``place``, which has ``seen`` so much already, reads of a tensor."""
        mine = self._operators[place]
        for made, portion in self._makers(tensor):
            size = seen.setdefault(made or tensor.storage, Parts()).add(portion)
            if made:
                mine.inputs += size
                mine.sources[made.operator] += size
                self._operators[made.operator].outputs += made.taken.add(portion)
            elif tensor.storage in self._given:
                mine.inputs += size
            else:
                mine.weights += size

    def _read(self, call: ModuleCall, mine: Sum, tensor: Seen) -> None:
        for made, portion in self._makers(tensor):
            if made and made.call is call:
                continue
            # What is written anew, in place, is another tensor in the same storage.
            size = call.read.setdefault(made or tensor.storage, Parts()).add(portion)
            if made:
                mine.inputs += size
                mine.sources[made.call.path] += size
                self._sums[made.call.path].outputs += made.left.add(portion)
            elif tensor.storage in self._given:
                mine.inputs += size
            else:
                mine.weights += size
