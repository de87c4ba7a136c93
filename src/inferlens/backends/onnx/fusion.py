"""Which nodes of an ONNX graph each node of an optimised version of it came from.

Optimisers rename, fuse and insert nodes, and keep the names of most tensors. A node of the optimised graph covers
everything that the original graph computes between the tensors that it reads and the ones that it writes. Where a
tensor has a new name, its old one is found from what is around it:

- A node that only changes type, device, shape or memory order, and that the original graph does not have, was inserted:
  what it reads is what it writes.
- ONNX Runtime names a convolution in blocked memory order (NCHWc) after the tensor that it wrote before, ``relu_nchwc``
  for ``relu``; that is where its own work ended before what follows it was fused into it as well. What follows is told
  by its readers: a reader's inputs are those of the original node that it was made from.
- A node that kept its name writes what the original of that name wrote.
- Computing fp16 in fp32, ONNX Runtime names the tensor before a cast after the one behind it, with a prefix.

A node that writes nothing known, such as a part of an operator that ONNX Runtime has taken apart, lies within what its
readers cover, and came from what they came from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from inferlens.backends.onnx.modules import OnnxNode, OnnxNodes

CHANGERS = ("ReorderInput", "ReorderOutput", "Cast", "Transpose", "MemcpyToHost", "MemcpyFromHost")
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
CAST = "InsertedPrecisionFreeCast_"
BLOCKED = re.compile(r"_nchwc(_token_\d+)?$")


class Fusion:
    """The original graph and the optimised one, side by side; nodes of the optimised graph go by their names."""

    def __init__(self, original: OnnxNodes, optimised: OnnxNodes) -> None:
        self._original = original
        self._optimised = optimised
        self._names = Counter(node.name for node in optimised.nodes)
        self._known: dict[str, str] = {}  # tensors of the optimised graph: their names in the original one
        self._found: dict[str, list[OnnxNode]] = {}
        self._read_by: dict[str, list[OnnxNode]] = {}
        for node in optimised.nodes:
            for name in node.inputs:
                self._read_by.setdefault(name, []).append(node)
        self._keep_names()
        self._follow_inserted()
        self._ask_readers()
        self._keep_own()
        self._stops = set(self._known.values())

    @property
    def written(self) -> Collection[str]:
        """The tensors that nodes of the optimised graph write."""
        return self._optimised.by_output.keys()

    def node(self, name: str, kind: str) -> OnnxNode | None:
        """The node of the optimised graph of that name and kind, if there is only one."""
        found = self._optimised.by_name.get(name)
        alone = found is not None and found.kind == kind and self._names[name] == 1
        return found if alone else None

    def inserted(self, name: str) -> bool:
        """Whether a node of the optimised graph has no origin but changes type, device, shape or memory order."""
        node = self._optimised.by_name.get(name)
        return node is not None and self._is_inserted(node)

    def sources(self, name: str) -> list[OnnxNode]:
        """The original nodes that a node of the optimised graph came from; none if that is not known."""
        if name not in self._found:
            self._found[name] = []  # where names are not unique, a node may seem to read what it writes
            self._found[name] = self._sources(name)
        return self._found[name]

    def _sources(self, name: str) -> list[OnnxNode]:
        node = self._optimised.by_name.get(name)
        if node is None:
            found = self._original.by_name.get(name)
            return [found] if found else []
        if self._is_inserted(node):
            return []
        writes = {self._known[output] for output in node.outputs if output in self._known}
        if not writes:
            return self._original.in_order(
                source for reader in self._readers(node) for source in self.sources(reader.name)
            )
        return self._original.between(writes, (self._stops | self._reads(node)) - writes)

    def _readers(self, node: OnnxNode) -> list[OnnxNode]:
        readers = [reader for output in node.outputs for reader in self._read_by.get(output, ())]
        return [reader for reader in readers if reader.name and reader.name != node.name]

    def _reads(self, node: OnnxNode) -> set[str]:
        return {self._known.get(name, name) for name in node.inputs}

    def _is_inserted(self, node: OnnxNode) -> bool:
        if node.kind not in (*CHANGERS, *VIEWS) or len(node.outputs) != 1:
            return False
        same = VIEWS if node.kind in VIEWS else (node.kind,)
        own = self._original.by_name.get(node.name)
        made = self._original.by_output.get(node.outputs[0])
        return not any(each is not None and each.kind in same for each in (own, made))

    def _keep_names(self) -> None:
        for node in self._optimised.nodes:
            for output in node.outputs:
                if output.removeprefix(CAST) in self._original.by_output:
                    self._known[output] = output.removeprefix(CAST)

    def _follow_inserted(self) -> None:
        """Gives what an inserted node reads the name of what it writes, and the other way round."""
        for node in reversed(self._optimised.nodes):
            if self._is_inserted(node) and node.outputs[0] in self._known:
                self._known.setdefault(node.inputs[0], self._known[node.outputs[0]])
        for node in self._optimised.nodes:
            if self._is_inserted(node) and node.inputs[0] in self._known:
                self._known.setdefault(node.outputs[0], self._known[node.inputs[0]])

    def _ask_readers(self) -> None:
        """Names what is read by a node from what its original reads, if that one is of the same kind."""
        for node in self._optimised.nodes:
            base = self._base(node)
            if base is None:
                continue
            for name, was in zip(node.inputs, base.inputs, strict=False):
                if name in self._optimised.by_output and was in self._original.by_output:
                    self._known.setdefault(name, was)
        self._follow_inserted()

    def _base(self, node: OnnxNode) -> OnnxNode | None:
        """The original of a node in blocked memory order: of its kind, the last before the tensor in its name."""
        tensor, found = BLOCKED.subn("", node.name.removeprefix(CAST))
        maker = self._original.by_output.get(tensor) if found else None
        while maker is not None and maker.kind != node.kind:
            maker = self._original.by_output.get(maker.inputs[0]) if maker.inputs else None
        return maker

    def _keep_own(self) -> None:
        """Names what is still unknown by the node that writes it: its name, or the tensor in its name."""
        for node in self._optimised.nodes:
            own = self._original.by_name.get(node.name)
            tensor, found = BLOCKED.subn("", node.name.removeprefix(CAST))
            for place, output in enumerate(node.outputs):
                if output in self._known:
                    continue
                if own is not None and place < len(own.outputs):
                    self._known[output] = own.outputs[place]
                elif found and tensor in self._original.by_output:
                    self._known[output] = tensor
        self._follow_inserted()
