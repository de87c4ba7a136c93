"""Modules that want their arguments by name, called by position."""

import copy
from types import MethodType

import pytest
import torch
from torch import nn

from inferlens.models.inputs import by_position
from tests.refusals import refusal

NAMES = ("left", "right")
FEED = (torch.full((2, 3), 5.0), torch.ones(2, 3))


class Named:
    """Outputs with named fields, like those of Transformers."""

    def __init__(self, *tensors):
        self.tensors = tensors

    def to_tuple(self):
        return (*self.tensors, "no tensor")


class Subtract(nn.Module):
    """Takes its arguments by name alone."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(3, 3, bias=False)
        nn.init.eye_(self.scale.weight)

    def forward(self, *, right, left):
        return Named(self.scale(left) - right)


def four(outputs):
    return isinstance(outputs, tuple) and torch.equal(outputs[0], torch.full((2, 3), 4.0))


def test_paths_and_the_module_stay_the_same():
    module = Subtract()
    made = by_position(module, NAMES)
    assert [path for path, _ in made.named_modules()] == ["", "scale"]
    assert list(made.state_dict()) == ["scale.weight"]
    assert made.scale is module.scale
    assert str(type(made)) == str(type(module)), "libraries look classes up by this"
    assert four(made(*FEED))
    assert isinstance(module(left=FEED[0], right=FEED[1]), Named)
    with pytest.raises(TypeError):
        module(*FEED)
    copied = copy.deepcopy(made)
    nn.init.zeros_(made.scale.weight)
    assert four(copied(*FEED))
    assert torch.equal(made(*FEED)[0], torch.full((2, 3), -1.0))


def test_tracers_and_compilers_take_it_under_the_same_paths():
    made = by_position(Subtract().eval(), NAMES)
    traced = torch.jit.trace(made, FEED)
    assert four(traced(*FEED))
    program = torch.export.export(made, FEED, strict=False)
    assert four(program.module()(*FEED))
    stacks = [node.meta.get("nn_module_stack") or {} for node in program.graph.nodes]
    assert {path for stack in stacks for path, _ in stack.values()} == {"", "scale"}
    assert four(torch.compile(made, backend="eager")(*FEED))


def patched(module):
    module.forward = MethodType(type(module).forward, module)
    return module


def generated(_):
    class Plain(nn.Module):
        def forward(self, left, right):
            return (left - right,)

    return torch.fx.symbolic_trace(Plain())


@pytest.mark.parametrize("change", [patched, generated])
def test_a_module_that_is_more_than_its_class_is_refused(change):
    refusal("a forward that was replaced", by_position, change(Subtract()), NAMES)
