"""Work of layers and kernels: their operators, FLOPs and bytes, and the precisions that they compute in.

Work is counted by operator; what ran is known by module. An operator is assigned to a layer only if nothing else could
have computed it. If several could, none of them has known work, for a wrong number is worse than none.

- All operators of a module that only one layer names belong to that layer.
- Kernels that one operator launched in a row (a fill, a change of memory order, the product) are one *unit*.
- FLOPs belong to units that compute with matrices, as their operator, kind or name says. Of a module with several
  products they go to units whose shapes make as many FLOPs, or without shapes, in order to as many such units.
- Other operators of a module go to its other units if their names are the same, or if they are as many calls of one
  operator.
- A module that no layer names is a part of the layer that is the module around it. Without such a layer, a module
  without FLOPs, such as a batch norm, was folded into the layer that makes its input.

A tensor that is made and read within a unit does not go through memory, and counts no bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby

from msgspec import Struct

from inferlens.analysis.profile_table import DENSE, Runs, computed_precision, is_conversion, layer_family
from inferlens.record.profile import Kernel, Layer, ModuleWork, OperatorWork, Profile, Work
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
_FLOPS_TOLERANCE = 0.01  # relative difference between FLOPs of an operator and of a layer's shapes
# Parts without products, whatever else their names say. Generated pointwise kernels and reductions are named after the
# operators around them; then kernels launched next to a product, PyTorch's own kernels, and kinds that move data.
_GENERATED = re.compile(
    r"triton_(?:poi|red|per|for)|Triton (?:pointwise|reduction|foreach|persistent)|cpp_fused|C\+\+$"
)
_AUXILIARY = re.compile(
    r"nchwto|nhwcto|splitk_?reduce|elementwise_kernel|reduce_kernel|layer_norm|softmax", re.IGNORECASE
)
_MOVING = re.compile(
    r"transpose|permute|re(?:order|format)\w*|reshape|(?:un)?squeeze|flatten|view|cast|convert"
    r"|(?:dynamic|fake)?(?:re|de)?quantize(?:linear)?(?:_per_\w+)?|concat|cat|slice|split|zeros",
    re.IGNORECASE,
)
_MYELIN = re.compile(r"__myl_(?!\w*(?:Fc|Conv|Gemm|Mat|Mha))", re.ASCII)  # TensorRT's own pointwise kernels
_FRAMEWORK = ("aten::", "prims::")


class PartWork(Struct, frozen=True):
    """The work of a unit in one run: FLOPs, bytes to and from memory, and of these the weights."""

    flops: float
    bytes: float
    weights: float


class Unit(Struct, frozen=True):
    """Places of layers or kernels that work together, and their work; ``None`` if unknown."""

    parts: tuple[int, ...]
    work: PartWork | None


def assign_work(parts: Sequence[Part], work: Work) -> tuple[list[Unit], tuple[str, ...]]:
    """Return units that hold each layer or kernel once, in order, and the modules with FLOPs that are in none."""
    modules = {module.module: module for module in work.modules}
    operators = work.operators or _module_operators(work.modules)
    units = _launch_units(parts)
    assignment = _Assignment([[parts[index] for index in unit] for unit in units], operators, modules)
    results = [Unit(unit, assignment.work(number)) for number, unit in enumerate(units)]
    return results, tuple(dict.fromkeys(operators[index].module for index in assignment.unplaced))


def _module_operators(modules: Sequence[ModuleWork]) -> list[OperatorWork]:
    """Return each module as one operator, for profiles that do not have single operators."""
    indices = {module.module: index for index, module in enumerate(modules)}
    return [
        OperatorWork(
            module=module.module, operator=" ".join(module.operators), flops=module.flops, weights=module.weights,
            inputs=module.inputs, outputs=module.outputs, returned=module.returned,
            sources={indices[source]: size for source, size in module.sources.items() if source in indices},
        )
        for module in modules
    ]  # fmt: skip


def _launch_units(parts: Sequence[Part]) -> list[tuple[int, ...]]:
    """Return units of the kernels in a row that one call of an operator launched; equal names are a call each."""

    def key(index: int) -> object:
        part = parts[index]
        return (part.operator, part.layer, part.modules) if isinstance(part, Kernel) and _aten(part) else index

    units: list[tuple[int, ...]] = []
    for _, group in groupby(range(len(parts)), key):
        run = tuple(group)
        units += [(index,) for index in run] if len({parts[index].name for index in run}) == 1 else [run]
    return units


class _Assignment:
    """The unit that computes each operator."""

    def __init__(
        self, units: Sequence[Sequence[Part]], operators: Sequence[OperatorWork], modules: Mapping[str, ModuleWork]
    ) -> None:
        self._operators, self._units = operators, units
        self.unit_by_operator: dict[int, int] = {}  # indices of both; only for known units
        self.unsure: set[int] = set()  # units that may have computed other operators as well
        self.lost: set[int] = set()  # units that may have computed other products
        self.unplaced: list[int] = []  # operators with FLOPs that no unit can have computed
        self._module_units: dict[str, int] = {}  # units that are a whole module, by its path
        units_by_module: dict[str, list[int]] = {}
        for number, unit in enumerate(units):
            first = unit[0]
            for path in dict.fromkeys(path for part in unit for path in part.modules if path in modules):
                units_by_module.setdefault(path, []).append(number)
            if first.modules == (first.name,) and first.name in modules and modules[first.name].kind == first.kind:
                self._module_units[first.name] = number
        operators_by_module: dict[str, list[int]] = {}
        for index, operator in enumerate(operators):
            if operator.flops or operator.weights or operator.inputs or operator.outputs:  # others only allocate
                operators_by_module.setdefault(operator.module, []).append(index)
        # Modules that units name come first: folding follows the units of their operators.
        for path in sorted(operators_by_module, key=lambda path: path not in units_by_module):
            if path in units_by_module:
                self._assign(operators_by_module[path], units_by_module[path])
            else:
                self._fold(path, operators_by_module[path])

    def work(self, unit: int) -> PartWork | None:
        """Return the work of a unit; ``None`` if it is unknown."""
        computed = {index for index, user in self.unit_by_operator.items() if user == unit}
        operators = [self._operators[index] for index in computed]
        modules = {path for part in self._units[unit] for path in part.modules}
        # Operators that may have been fused with a product are small: the work is then that of the product.
        unsure = unit in self.unsure and not any(operator.flops for operator in operators)
        if unsure or unit in self.lost or not (computed or modules.intersection(self._module_units)):
            return None
        leaving = {index: self._operators[index].returned for index in computed}
        for index, reader in enumerate(self._operators):
            for source, size in reader.sources.items() if index not in computed else ():
                if source in computed:
                    leaving[source] += size
        reads: dict[int, int] = {}
        inputs = 0
        for operator in operators:
            # Operators that read the model's inputs presumably read the same ones.
            inputs = max(inputs, operator.inputs - sum(operator.sources.values()))
            for source, size in operator.sources.items():
                if source not in computed:
                    reads[source] = reads.get(source, 0) + size
        read = sum(min(size, self._operators[source].outputs) for source, size in reads.items())
        written = sum(min(size, self._operators[index].outputs) for index, size in leaving.items())
        weights = sum(operator.weights for operator in operators)
        flops = sum(operator.flops for operator in operators)
        return PartWork(max(flops, 0.0), max(inputs + read + written + weights, 0), max(weights, 0))

    def _assign(self, indices: Sequence[int], users: Sequence[int]) -> None:
        """Assign the operators of a module to the units that name it."""
        products = [index for index in indices if self._operators[index].flops]
        others = [index for index in indices if index not in products]
        candidates = self._matrix_units(users) if products else []
        if len(users) == 1 and (candidates or not products):
            self.unit_by_operator.update(dict.fromkeys(indices, users[0]))
            return
        other_users = [user for user in users if user not in candidates]
        pairs = self._match_products(products, candidates)
        self.unit_by_operator.update(pairs)
        if not candidates:
            self.unplaced += products
        elif len({index for index, _ in pairs}) < len(products):
            self.lost |= set(candidates).difference(user for _, user in pairs)
        pairs = self._match_names(others, other_users)
        if not pairs and not products and len({self._operators[index].operator for index in others}) == 1:
            # Several calls of one operator, and as many units.
            pairs = list(zip(others, other_users, strict=True)) if len(others) == len(other_users) else []
        if others and not pairs:
            self.unsure |= set(other_users)
        self.unit_by_operator.update(pairs)

    def _matrix_units(self, users: Sequence[int]) -> list[int]:
        """Return the units that compute with matrices, or else all that may.

        The kind of a layer or the name of a kernel decides, or else its operators.
        """
        free = [user for user in users if not all(map(_has_no_product, self._units[user]))]
        by_kind = [
            user for user in free
            if any(_MATRIX.search(_kind(part)) for part in self._units[user] if not _has_no_product(part))
        ]  # fmt: skip
        launched = [user for user in free if any(_MATRIX.search(_operators(part)) for part in self._units[user])]
        named = [user for user in free if any(_aten(part) for part in self._units[user])]
        sure = [user for user in launched if user in named]
        return sure or by_kind or launched or [user for user in free if user not in named]

    def _match_products(self, products: Sequence[int], units: Sequence[int]) -> list[tuple[int, int]]:
        """Return sure pairs of products and units, by their shapes or else in the order of both."""
        if len(units) == 1:
            return [(product, units[0]) for product in products]
        if by_shape := self._match_sizes(products, units):
            return by_shape
        attends = [bool(_ATTENTION.search(self._operators[product].operator)) for product in products]
        fused = [any(_ATTENTION.search(_kind(part) + _operators(part)) for part in self._units[unit]) for unit in units]
        return list(zip(products, units, strict=True)) if attends == fused else []

    def _match_sizes(self, products: Sequence[int], units: Sequence[int]) -> list[tuple[int, int]]:
        """Return pairs of products and units with equal FLOPs; none if the shapes of a unit do not tell them."""
        sizes = {unit: _shape_flops(self._units[unit]) for unit in units}
        if not all(sizes.values()):
            return []
        pairs = []
        for product in products:
            flops = self._operators[product].flops
            equal = (unit for unit, size in sizes.items() if size and abs(flops / size - 1) < _FLOPS_TOLERANCE)
            if (unit := next(equal, None)) is not None:
                pairs.append((product, unit))
                del sizes[unit]
        return pairs

    def _match_names(self, operators: Sequence[int], units: Sequence[int]) -> list[tuple[int, int]]:
        """Return pairs of operators and the units that operators of their names launched; all of them, or none."""
        pairs, iterator = [], iter(units)
        for index in operators:
            name = _base_name(self._operators[index].operator)
            for unit in iterator:
                if name and name in {_base_name(_aten(part)) for part in self._units[unit]}:
                    pairs.append((index, unit))
                    break
            else:
                return []
        return pairs

    def _fold(self, path: str, indices: Sequence[int]) -> None:
        """Assign the operators of a module that no unit names."""
        names = path.split(".") if path else []
        ancestors = (".".join(names[:length]) for length in range(len(names) - 1, -1, -1))  # the nearest first
        module_unit = next((self._module_units[name] for name in ancestors if name in self._module_units), None)
        for index in indices:
            operator = self._operators[index]
            sources = [source for source in operator.sources if source in self.unit_by_operator]
            if module_unit is not None:
                self.unit_by_operator[index] = module_unit
            elif operator.flops:
                self.unplaced.append(index)
            elif sources:
                largest = max(sources, key=lambda source: operator.sources[source])
                self.unit_by_operator[index] = self.unit_by_operator[largest]


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
    return part.kind if isinstance(part, Layer) else part.name[:1000]


def _operators(part: Part) -> str:
    return " ".join(part.operators) if isinstance(part, Layer) else part.operator


def _aten(part: Part) -> str:
    """Return the operator of PyTorch that launched a kernel, or an empty string."""
    return part.operator if isinstance(part, Kernel) and part.operator.startswith(_FRAMEWORK) else ""


def _base_name(operator: str) -> str:
    """Return the name of an operator without namespace and without the mark of its in-place variant."""
    return re.split(r"::|\.", operator)[-1].rstrip("_")


def _has_no_product(part: Part) -> bool:
    kind = _kind(part)
    if isinstance(part, Kernel) and part.kind != "kernel":
        return True
    if _GENERATED.match(kind) or _AUXILIARY.search(kind) or _MYELIN.match(kind):
        return True
    return isinstance(part, Layer) and bool(_MOVING.fullmatch(kind))


class Precisions(Struct, frozen=True, kw_only=True):
    """The precisions of the layers or kernels of one case. Numbers are their indices.

    Conversions of type or memory order have no precision: in a quantized model they are the cost of quantizing. An
    unknown precision is empty.
    """

    # Share of the call, or of all kernels, by precision; with ``converting`` and the time outside of layers it adds
    # up to 1.
    time: dict[str, float]
    # Share of the multiply-adds by precision, which adds up to 1; empty if they were not counted.
    work: dict[str, float]
    converting: float  # share of the time in conversions; ``conversions``: their indices
    conversions: tuple[int, ...]
    stayed: tuple[int, ...]  # indices of multiply-adds in a precision that is not quantized, longest first


def precisions(profile: Profile, runs: Runs) -> Precisions | None:
    """Return the precisions of a profile's layers or kernels; ``None`` if all are unknown."""
    parts: Sequence[Part] = profile.parts
    runs = runs if profile.layers else runs.with_kernel_shares()
    names = [computed_precision(part) for part in parts]
    if not any(names):
        return None
    conversions = [index for index, part in enumerate(parts) if is_conversion(part)]
    computing = [index for index in range(len(parts)) if index not in set(conversions)]

    def share(indices: Sequence[int]) -> float:
        return runs.share(runs.layers[list(indices)].sum(axis=0)) or 0.0

    work, products = _work_by_precision(profile, names)
    by_name = {name: [index for index in computing if names[index] == name] for name in dict.fromkeys(names)}
    stayed = [index for index in products if names[index] not in ("", "int4", *QUANTIZED)]
    stayed = [index for index in stayed if runs.layers[index].any() and index not in set(conversions)]
    return Precisions(
        time={name: share(indices) for name, indices in by_name.items() if indices},
        work=work,
        converting=share(conversions),
        conversions=tuple(index for index in conversions if runs.layers[index].any()),
        stayed=tuple(sorted(stayed, key=lambda index: -runs.typical(runs.layers[index]))),
    )


def _work_by_precision(profile: Profile, names: Sequence[str]) -> tuple[dict[str, float], list[int]]:
    """Return the share of the multiply-adds by precision, and the indices of the parts that have any."""
    parts, work = profile.parts, profile.work
    units = assign_work(parts, work)[0] if work and work.modules else []
    flops = {unit.parts: unit.work.flops for unit in units if unit.work and unit.work.flops > 0}
    total = sum(module.flops for module in work.modules) if work else 0.0
    layers = [(index, part) for index, part in enumerate(parts) if isinstance(part, Layer)]
    dense = [index for index, part in layers if layer_family(part.kind, part.name) in DENSE]
    if not flops or total <= 0:
        return {}, dense
    shares: dict[str, float] = {}
    for indices, count in flops.items():
        name = next((names[index] for index in indices if names[index]), "")
        shares[name] = shares.get(name, 0.0) + count / total
    uncounted = 1.0 - sum(shares.values())
    if uncounted > 0:
        shares[""] = shares.get("", 0.0) + uncounted
    return shares, sorted({*dense, *(index for indices in flops for index in indices)})
