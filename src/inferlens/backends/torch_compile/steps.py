"""Which nodes of a graph each call in Inductor's code computes, of those that Inductor names for it.

It names too many of a convolution or a matrix product, and after it: those before it, which were computed by then; they
are left out. That is so whether a library computes it or a Triton template, between which autotuning chooses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

TEMPLATE = "triton_tem"
PRODUCTS = frozenset({  # what libraries and templates compute, and no other kernel
    "convolution", "mm", "addmm", "bmm", "baddbmm", "_int_mm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm",
    "flex_attention",
})  # fmt: skip


class Step(Struct):
    """One call, with the nodes of the graph that it came from, in the graph's order.

    Attributes:
        product: whether a library's operator or a template, which compute what no other kernel computes again.
    """

    name: str
    extern: bool
    product: bool
    origins: list[Any]


def step_of(name: str, extern: bool, origins: list[Any], computed: set[Any], done: set[Any]) -> Step:
    """A call, with those of the nodes that Inductor names for it that it computes, or works on.

    Args:
        computed: by libraries and templates before it.
        done: by any call before it.
    """
    if extern:
        return Step(name, extern, True, own(origins, name, computed))
    products = [node for node in origins if is_product(node) and node not in computed]
    if not (name.startswith(TEMPLATE) and products):
        return Step(name, extern, False, since(origins, computed))
    return Step(name, extern, True, [node for node in origins if node in products or node not in done])


def narrow(steps: list[Step]) -> None:
    """Takes from kernels the products that come after them, where it is sure what they compute.

    Inductor names a product, and all that it reads, for whatever it made for it: what the product reads, or another
    memory order of that or of the weights.
    """
    products = {node for step in steps if step.product for node in step.origins if step.extern or is_product(node)}
    kernels: list[tuple[Step, set[Any], set[Any]]] = []
    before: set[Any] = set()  # products
    done: set[Any] = set()
    claims: Counter[Any] = Counter()
    for step in steps:
        coming = set() if step.product else products.intersection(step.origins) - before
        if step.product:
            before |= products.intersection(step.origins)
        if not coming:
            done |= set(step.origins)
        elif waits(step.origins, products - before):
            inside = set(step.origins)
            step.origins = [node for node in step.origins if node in coming and inside.isdisjoint(node.users)]
        else:
            kernels.append((step, coming, set(done)))
            claims.update(step.origins)
    for step, coming, already in kernels:
        step.origins = working(step.origins, coming, already, claims)


def waits(origins: list[Any], coming: set[Any]) -> bool:
    """Whether nodes but for the products themselves need a product that is yet to come, and so cannot be computed."""
    waiting = [each for node in origins if node not in coming for each in node.all_input_nodes]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node in coming:
            return True
        if node not in seen:
            seen.add(node)
            waiting += node.all_input_nodes
    return False


def working(origins: list[Any], coming: set[Any], done: set[Any], claims: Mapping[Any, int]) -> list[Any]:
    """The nodes of a kernel without the products ``coming`` after it, if it alone can have computed the others.

    Where all others are ``done`` already, it makes ready what the products read. Else nothing is left out.

    Args:
        claims: of how many such kernels each node is told.
    """
    others = [node for node in origins if node not in coming]
    left = [node for node in others if node not in done]
    if not left:
        return [node for node in origins if node in coming]
    return others if all(claims[node] == 1 for node in left) else origins


def is_product(node: Any) -> bool:
    """Whether libraries and templates compute it."""
    return target_of(node) in PRODUCTS


def own(origins: list[Any], name: str, computed: set[Any]) -> list[Any]:
    """Those of the nodes that a library's operator of that name computes: all, if none is told to be it.

    A node may have another name than what computes it: a convolution may be a matrix product.
    """
    alike = [node for node in origins if target_of(node) == name]
    products = [node for node in origins if is_product(node)]
    for each in (alike, products):
        left = [node for node in each if node not in computed]
        if left:
            return left
    return alike or origins


def since(origins: list[Any], computed: set[Any]) -> list[Any]:
    """The nodes without those that a kernel needs only for what was ``computed`` before it."""
    inside = set(origins)
    waiting = [node for node in origins if not any(user in inside for user in node.users)]
    needed: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            if node not in computed:
                waiting += [each for each in node.all_input_nodes if each in inside]
    return [node for node in origins if node in needed]


def target_of(node: Any) -> str:
    """The name of what a node calls, without namespace and overload."""
    return str(getattr(node.target, "_opname", "") or getattr(node.target, "__name__", node.target))
