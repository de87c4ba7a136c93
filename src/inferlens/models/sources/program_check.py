"""Whether an exported program (``.pt2``) is data alone, so that it can be opened without trusting its author.

PyTorch evaluates some of the text in such a file as Python: sizes of dynamic dimensions (``sympy.sympify``), names that
end up in generated code, and imports that the description of nested outputs asks for. Here the text is read first, and
a file is passed only if all of it is of the plain form that ``torch.export.save`` writes. What is in doubt is refused:
the user can still trust it.
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Pickles of any class, and native code. Compared in lower case, as PyTorch's reader of archives ignores case.
UNSAFE_PARTS = ("/custom_obj_", "/opaque_obj_", "/aotinductor/", "script_object")
UNSAFE_PAYLOADS = ("custom_obj_", "opaque_obj_")
PLAIN = re.compile(r"[\w .,:<>=+*/#@%|&^~!?$-]*")  # no quotes, brackets, backslashes or line ends: no way into code
FUNCTION = re.compile(r"[A-Z][A-Za-z]*|floor|ceiling|sqrt|log|exp|sin|cos|tan")  # of sizes; Max, FloorDiv, CeilToInt
TREES = ("in_spec", "out_spec")
IMPORTING = re.compile(r'__enum__|default_factory|\\[^"\\]')  # also if spelt otherwise
EXPRESSION = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
    ast.Name, ast.Load, ast.Constant, ast.Call, ast.keyword,
)  # fmt: skip


def code_in(path: Path) -> str:
    """What in the file could run code when it is opened; empty if nothing can.

    Raises Exception if the file is no archive, or a part of it that should be JSON is not.
    """
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len({name.lower() for name in names}) != len(names):
            return "two parts of one name"  # PyTorch might read the one that was not looked at
        for name in names:
            if any(part in name.lower() for part in UNSAFE_PARTS):
                return name
            if name.lower().endswith(".json") or "/models/" in f"/{name.lower()}":
                found = next(_code(json.loads(archive.read(name)), ""), "")
                if found:
                    return f"'{found[:60]}' in {name}"
    return ""


def _code(value: Any, key: str) -> Iterator[str]:
    """Every text in ``value`` that is not of a plain form; ``key`` is the field it stands in."""
    if isinstance(value, dict):
        if key == "metadata" and _is_free_text(value):
            return
        for name, part in value.items():
            yield from _code(name, "")
            yield from _code(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from _code(part, key)
    elif isinstance(value, str) and not _is_plain(value, key):
        yield value


def _is_plain(text: str, key: str) -> bool:
    if key == "expr_str":
        return is_arithmetic(text)
    if key in TREES:
        return IMPORTING.search(text) is None
    if key == "guards_code":  # would be run by `module()`, which is told not to
        return True
    return PLAIN.fullmatch(text) is not None and not (key == "path_name" and text.startswith(UNSAFE_PAYLOADS))


def _is_free_text(metadata: dict[str, Any]) -> bool:
    """Whether this is what a node says of its origin: stack traces and module paths, which nothing evaluates."""
    return all(isinstance(part, str) for part in metadata.values()) and not {"expr_str", *TREES} & metadata.keys()


def is_arithmetic(text: str) -> bool:
    """Whether ``text`` is numbers and symbols with operators and functions of sizes, such as ``Max(1, s0//2)``."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(isinstance(node, EXPRESSION) and _is_harmless(node) for node in ast.walk(tree))


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and FUNCTION.fullmatch(node.func.id) is not None
    if isinstance(node, ast.Constant):  # a text is the name of a symbol, as in Symbol('s17', integer=True)
        return isinstance(node.value, (bool, int, float)) or (isinstance(node.value, str) and node.value.isalnum())
    return not isinstance(node, ast.Name) or "__" not in node.id
