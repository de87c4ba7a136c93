"""What each layer or kernel has to do: the operators that it computes, their FLOPs, and the bytes it has to move.

Work is counted by operator; what ran is known by module. An operator is given to a layer only where nothing else could
have computed it; where several could, none of them has known work, for a wrong number is worse than none.

- All operators of a module that one layer names are that layer's.
- Kernels that one operator launched one after the other (a fill, a change of memory order, the product) are one *unit*.
- FLOPs are of units that compute with matrices, as their operator, kind or name says. Of a module with several products
  these go to units whose shapes make as many FLOPs; where shapes are not known, in order to as many such units.
  Attention may be one unit, or two products.
- Other operators of a module go to its other units where their names are the same, or where they are as many calls of
  one operator.
- A module that no layer names is part of the layer that is the module around it. If it has no FLOPs it is else part of
  the layer that makes its input: what is left out, such as a batch norm, was folded into something.

A tensor that is made and read within a unit does not go through memory, and is in no bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import Struct

from inferlens.analysis.profile_table import DENSE, Runs, computed_in, is_conversion, of_layer
from inferlens.record.layer_profile import Kernel, Layer, Profile
from inferlens.record.work import ModuleWork, OperatorWork, Work
from inferlens.spec.case import QUANTIZED

Part = Layer | Kernel

_ATTENTION = re.compile(r"attention|mha|sdpa|flash", re.IGNORECASE)
_MATRIX = re.compile(
    r"conv(?!er)|gemm|matmul|matrix_?multiply|addmm|bmm|\bmm\b|_mm\b|gru|lstm|rnn"
    r"|(?<!bi)(?<!tri)(?<!quantize)linear(?!add|mul|concat|sigmoid|leaky|average|global|soft)"
    r"|fully_?connected|inner_?product|attention|sdpa|mha|flash|fprop|cutlass|xmma|nvjet|correlation|dense",
    re.IGNORECASE,
)
_PRODUCT = re.compile(r"matmul|gemm|fully_?connected", re.IGNORECASE)
_FLOPS_TOLERANCE = 0.01  # by which FLOPs of an operator and of a layer's shapes may differ
# What computes no products, whatever its name says besides: generated pointwise kernels and reductions are named after
# the operators around them. Then what is launched beside a product, PyTorch's own kernels, and kinds that move data.
_GENERATED = re.compile(
    r"triton_(?:poi|red|per|for)|Triton (?:pointwise|reduction|foreach|persistent)|cpp_fused|C\+\+$"
)
_AUXILIARY = re.compile(
    r"nchwto|nhwcto|splitk_?reduce|elementwise_kernel|reduce_kernel|layer_norm|softmax", re.IGNORECASE
)
_MOVING = re.compile(
    r"transpose|permute|re(?:order|format)\w*|reshape|(?:un)?squeeze|flatten|view|cast|convert|(?:dynamic|fake)?(?:re|de)?quantize(?:linear)?(?:_per_\w+)?|concat|cat|slice|split|zeros",
    re.IGNORECASE,
)
_MYELIN = re.compile(r"__myl_(?!\w*(?:Fc|Conv|Gemm|Mat|Mha))", re.ASCII)  # TensorRT's own pointwise kernels
_FRAMEWORK = ("aten::", "prims::")


class PartWork(Struct, frozen=True):
    """What a unit has to do in one run: FLOPs, bytes between it and the memory, and of these the weights."""

    flops: float
    bytes: float
    weights: float


class Unit(Struct, frozen=True):
    """Places of the layers or kernels that do something together, and their work; ``None`` where it is not known."""

    parts: tuple[int, ...]
    work: PartWork | None


def assign_work(parts: Sequence[Part], work: Work, *, by_module: bool = False) -> tuple[list[Unit], tuple[str, ...]]:
    """Return units that hold each layer or kernel once, in order, and the modules with FLOPs that are in none.

    If ``joined``, all layers of one module alone are one unit, also where it is not known which does what.
    """
    known = {module.module: module for module in work.modules}
    operators = work.operators or _module_operators(work.modules)
    units = _module_units(parts) if by_module else _launch_units(parts)
    placed = _Assignment(parts, units, operators, known)
    found = [Unit(unit, placed.work(number)) for number, unit in enumerate(units)]
    return found, tuple(dict.fromkeys(operators[place].module for place in placed.unplaced))


def _module_operators(modules: Sequence[ModuleWork]) -> list[OperatorWork]:
    """Each module as if it was one operator: of profiles that do not have them one by one."""
    place = {module_work.module: number for number, module_work in enumerate(modules)}
    return [
        OperatorWork(
            module=module.module, operator=" ".join(module.operators), flops=module.flops, weights=module.weights,
            inputs=module.inputs, outputs=module.outputs, returned=module.returned,
            sources={place[source]: size for source, size in module.sources.items() if source in place},
        )
        for module in modules
    ]  # fmt: skip


def _launch_units(parts: Sequence[Part]) -> list[tuple[int, ...]]:
    """Kernels in a row that one call of an operator launched, as one; those of one name are a call each."""

    def key(place: int) -> object:
        part = parts[place]
        own = isinstance(part, Kernel) and part.operator.startswith(_FRAMEWORK)
        return (part.operator, part.layer, part.modules) if own and isinstance(part, Kernel) else place

    units: list[tuple[int, ...]] = []
    for _, group in groupby(range(len(parts)), key):
        run = tuple(group)
        units += [(place,) for place in run] if len({parts[place].name for place in run}) == 1 else [run]
    return units


def _module_units(parts: Sequence[Part]) -> list[tuple[int, ...]]:
    """The layers of one module alone as one, where no other layer names it."""
    shared = {path for part in parts if len(part.modules) > 1 for path in part.modules}
    units: dict[object, list[int]] = {}
    for place, part in enumerate(parts):
        alone = len(part.modules) == 1 and part.modules[0] not in shared
        units.setdefault(part.modules if alone else place, []).append(place)
    return [tuple(unit) for unit in units.values()]


class _Assignment:
    """Which unit computes each operator.

    Attributes:
        doer: the unit, by the operator's place; not there where it is not known.
        unsure: units that may have computed something else as well; ``lost``: of these, products.
        unplaced: operators with FLOPs that no unit can have computed.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        units: Sequence[tuple[int, ...]],
        operators: Sequence[OperatorWork],
        modules: Mapping[str, ModuleWork],
    ) -> None:
        self._parts, self._units, self._operators = parts, units, operators
        self.doer: dict[int, int] = {}
        self.unsure: set[int] = set()
        self.lost: set[int] = set()
        self.unplaced: list[int] = []
        self._users: dict[str, list[int]] = {}
        self._around: dict[str, int] = {}
        for number, unit in enumerate(units):
            first = parts[unit[0]]
            for path in dict.fromkeys(path for place in unit for path in parts[place].modules if path in modules):
                self._users.setdefault(path, []).append(number)
            if first.modules == (first.name,) and first.name in modules and modules[first.name].kind == first.kind:
                self._around[first.name] = number
        own: dict[str, list[int]] = {}
        for place, operator_work in enumerate(operators):
            if (
                operator_work.flops or operator_work.weights or operator_work.inputs or operator_work.outputs
            ):  # others only make room
                own.setdefault(operator_work.module, []).append(place)
        left = [path for path in own if path not in self._users]
        for path, places in own.items():
            if path in self._users:
                self._assign(places, self._users[path])
        for path in left:
            self._fold(path, own[path])

    def work(self, unit: int) -> PartWork | None:
        """What a unit has to do; ``None`` where that is not known."""
        own = [place for place, doer in self.doer.items() if doer == unit]
        modules = {path for place in self._units[unit] for path in self._parts[place].modules}
        # What may have been fused with a product is small beside it: then the work is that of the product.
        unsure = unit in self.unsure and not any(self._operators[place].flops for place in own)
        if unsure or unit in self.lost or not (own or modules.intersection(self._around)):
            return None
        inside = set(own)
        leaving = {place: self._operators[place].returned for place in own}
        for place, reader in enumerate(self._operators):
            for source, size in reader.sources.items() if place not in inside else ():
                if source in inside:
                    leaving[source] += size
        reads: dict[int, int] = {}
        given = 0
        for operator_work in (self._operators[place] for place in own):
            # Operators that read the model's inputs read the same ones, as far as can be told.
            given = max(given, operator_work.inputs - sum(operator_work.sources.values()))
            for source, size in operator_work.sources.items():
                if source not in inside:
                    reads[source] = reads.get(source, 0) + size
        read = sum(min(size, self._operators[source].outputs) for source, size in reads.items())
        written = sum(min(size, self._operators[place].outputs) for place, size in leaving.items())
        weights = sum(self._operators[place].weights for place in own)
        flops = sum(self._operators[place].flops for place in own)
        return PartWork(max(flops, 0.0), max(given + read + written + weights, 0), max(weights, 0))

    def _assign(self, places: Sequence[int], users: Sequence[int]) -> None:
        """Gives the operators of one module to the units that name it."""
        products = [place for place in places if self._operators[place].flops]
        others = [place for place in places if place not in products]
        able = self._matrix_units(users) if products else []
        if len(users) == 1 and (able or not products):
            self.doer.update(dict.fromkeys(places, users[0]))
            return
        rest = [user for user in users if user not in able]
        matched = self._match_products(products, able)
        for place, user in matched:
            self.doer[place] = user
        done = {place for place, _ in matched}
        if not able:
            self.unplaced += products
        elif len(done) < len(products):
            self.lost |= set(able).difference(user for _, user in matched)
        pairs = self._match_names(others, rest) or (self._match_calls(others, rest) if not products else ())
        if others and not pairs:
            self.unsure |= set(rest)
        self.doer.update(pairs)

    def _matrix_units(self, users: Sequence[int]) -> list[int]:
        """Those that compute with matrices: if none of them surely does, all that are not known to do something else.

        By kind, of a kernel by its name, which is a program's; else by operators.
        """
        texts = {user: [self._parts[place] for place in self._units[user]] for user in users}
        free = [user for user in users if not all(map(_has_no_product, texts[user]))]
        own = [
            user
            for user in free
            if any(_MATRIX.search(_kind(part)) for part in texts[user] if not _has_no_product(part))
        ]
        launched = [user for user in free if any(_MATRIX.search(_operators(part)) for part in texts[user])]
        named = [user for user in free if any(_aten(part) for part in texts[user])]
        return [user for user in launched if user in named] or own or launched or [
            user for user in free if user not in named
        ]  # fmt: skip

    def _match_products(self, products: Sequence[int], able: Sequence[int]) -> list[tuple[int, int]]:
        """Pairs of products and units, by their shapes or else in the order of both; those that are sure."""
        if len(able) == 1:
            return [(place, able[0]) for place in products]
        if by_shape := self._match_sizes(products, able):
            return by_shape
        attends = [bool(_ATTENTION.search(self._operators[place].operator)) for place in products]
        is_one = [any(_ATTENTION.search(_kind(part) + _operators(part)) for part in self._of(user)) for user in able]
        if attends == is_one:
            return list(zip(products, able, strict=True))
        if not any(attends):  # two products of the model may be one unit
            slots = [user for user, one in zip(able, is_one, strict=True) for _ in range(1 + one)]
            return list(zip(products, slots, strict=True)) if len(slots) == len(products) else []
        if not any(is_one) and len(able) == len(products) + sum(attends):  # or its attention two products
            units = iter(able)
            pairs = []
            for place, both in zip(products, attends, strict=True):
                pair = (place, next(units))
                pairs += [] if both and next(units) is not None else [pair]
            return pairs
        return []

    def _match_sizes(self, products: Sequence[int], units: Sequence[int]) -> list[tuple[int, int]]:
        """Pairs of products and units of as many FLOPs; none if the shapes of a unit do not tell these."""
        sizes = {user: _shape_flops([*self._of(user)]) for user in units}
        if not all(sizes.values()):
            return []
        pairs = []
        for place in products:
            flops = self._operators[place].flops
            user = next(
                (user for user, size in sizes.items() if size and abs(flops / size - 1) < _FLOPS_TOLERANCE), None
            )
            if user is not None:
                pairs.append((place, user))
                del sizes[user]
        return pairs

    def _match_names(self, operators: Sequence[int], rest: Sequence[int]) -> list[tuple[int, int]]:
        """Pairs of operators and the units that operators of their names launched; all of them, or none."""
        pairs, units = [], iter(rest)
        for place in operators:
            name = _base_name(self._operators[place].operator)
            named = (user for user in units if name and name in {_base_name(_aten(part)) for part in self._of(user)})
            user = next(named, None)
            if user is None:
                return []
            pairs.append((place, user))
        return pairs

    def _match_calls(self, operators: Sequence[int], units: Sequence[int]) -> list[tuple[int, int]]:
        """Pairs of several calls of one operator, and as many units."""
        same = len({self._operators[place].operator for place in operators}) == 1
        return list(zip(operators, units, strict=True)) if same and len(operators) == len(units) else []

    def _fold(self, path: str, places: Sequence[int]) -> None:
        """Places the operators of a module that no unit names."""
        names = path.split(".") if path else []
        above = (".".join(names[:length]) for length in range(len(names) - 1, -1, -1))  # the nearest first
        around = next((self._around[item] for item in above if item in self._around), None)
        for place in places:
            operator_work = self._operators[place]
            made = [source for source in operator_work.sources if source in self.doer]
            if around is not None:
                self.doer[place] = around
            elif operator_work.flops:
                self.unplaced.append(place)
            elif made:
                self.doer[place] = self.doer[max(made, key=lambda source: operator_work.sources[source])]

    def _of(self, user: int) -> Iterator[Part]:
        return (self._parts[place] for place in self._units[user])


def _shape_flops(unit: Sequence[Part]) -> float | None:
    """Return the FLOPs of a product of two matrices by its shapes; ``None`` if the unit is none, or has no shapes."""
    layer = unit[0]
    if len(unit) > 1 or not isinstance(layer, Layer) or not _PRODUCT.search(layer.kind):
        return None
    if len(layer.inputs) < 2 or not layer.outputs or not layer.inputs[0].shape or not layer.outputs[0].shape:
        return None
    depth = layer.inputs[0].shape[-1]
    return 2.0 * depth * math.prod(layer.outputs[0].shape) if depth in layer.inputs[1].shape else None


def _kind(part: Part) -> str:
    """What a part says of itself: a layer by its kind, a kernel by its name."""
    return part.kind if isinstance(part, Layer) else part.name[:1000]


def _operators(part: Part) -> str:
    return " ".join(part.operators) if isinstance(part, Layer) else part.operator


def _aten(part: Part) -> str:
    """The operator of PyTorch that launched a kernel, if it is one."""
    return part.operator if isinstance(part, Kernel) and part.operator.startswith(_FRAMEWORK) else ""


def _base_name(operator: str) -> str:
    """The name of an operator without its namespace; what works in place goes by the name of what does not."""
    return re.split(r"::|\.", operator)[-1].rstrip("_")


def _has_no_product(part: Part) -> bool:
    """Whether a part surely computes no products."""
    own = _kind(part)
    if isinstance(part, Kernel) and part.kind != "kernel":
        return True
    if _GENERATED.match(own) or _AUXILIARY.search(own) or _MYELIN.match(own):
        return True
    return isinstance(part, Layer) and bool(_MOVING.fullmatch(own))


# What a call is computed in: the share of its time, and of its multiply-adds, in each precision.
#
# What only changes type or memory order computes in none, and is counted apart: in a quantized model it is what
# quantizing costs. Where a backend does not tell of a layer, or a name of a kernel, its precision is empty.


class Precisions(Struct, frozen=True, kw_only=True):
    """In what the layers or kernels of one case compute; places are theirs, from 0.

    Attributes:
        time: share of the call, or of all kernels, by precision; with ``converting`` and what is in no layer it adds
            up to 1.
        work: share of the multiply-adds, by precision, which adds up to 1; empty where they were not counted.
        converting: share of the time in what only changes type or memory order; ``conversions``: the places of that.
        stayed: places of what has multiply-adds and computes them in no quantized precision, longest first.
    """

    time: dict[str, float]
    work: dict[str, float]
    converting: float
    conversions: tuple[int, ...]
    stayed: tuple[int, ...]


def precisions(profile: Profile, runs: Runs) -> Precisions | None:
    """In what a profile's layers or kernels compute; ``None`` where nothing tells of any."""
    parts: Sequence[Layer | Kernel] = profile.parts
    runs = runs if profile.layers else runs.with_kernel_shares()
    found = [computed_in(part) for part in parts]
    if not any(found):
        return None
    conversions = [place for place, part in enumerate(parts) if is_conversion(part)]
    computing = [place for place in range(len(parts)) if place not in set(conversions)]

    def share(places: Sequence[int]) -> float:
        return runs.share(runs.layers[list(places)].sum(axis=0)) or 0.0

    work, products = _work_by_precision(profile, found)
    by_name = {name: [place for place in computing if found[place] == name] for name in dict.fromkeys(found)}
    stayed = [place for place in products if found[place] not in ("", "int4", *QUANTIZED)]
    stayed = [place for place in stayed if runs.layers[place].any() and place not in set(conversions)]
    return Precisions(
        time={name: share(places) for name, places in by_name.items() if places},
        work=work,
        converting=share(conversions),
        conversions=tuple(place for place in conversions if runs.layers[place].any()),
        stayed=tuple(sorted(stayed, key=lambda place: -runs.typical(runs.layers[place]))),
    )


def _work_by_precision(profile: Profile, names: Sequence[str]) -> tuple[dict[str, float], list[int]]:
    """The share of the multiply-adds in each precision, and the places of what has any."""
    parts, work = profile.parts, profile.work
    units = assign_work(parts, work)[0] if work and work.modules else []
    done = {unit.parts: unit.work.flops for unit in units if unit.work and unit.work.flops > 0}
    whole = sum(module.flops for module in work.modules) if work else 0.0
    layers = [(place, part) for place, part in enumerate(parts) if isinstance(part, Layer)]
    dense = [place for place, part in layers if of_layer(part.kind, part.name) in DENSE]
    if not done or whole <= 0:
        return {}, dense
    shares: dict[str, float] = {}
    for places, flops in done.items():
        name = next((names[place] for place in places if names[place]), "")
        shares[name] = shares.get(name, 0.0) + flops / whole
    rest = 1.0 - sum(shares.values())
    if rest > 0:
        shares[""] = shares.get("", 0.0) + rest
    return shares, sorted({*dense, *(place for places in done for place in places)})
