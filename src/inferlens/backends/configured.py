"""What is set of a backend: its options as a typed struct, what a case asks for of them, and what it could ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from inferlens.analysis.findings.hints import Hint
from inferlens.errors import InferlensError, suggestion
from inferlens.spec.case import Case, Option

ON_CUDA = ("cuda_graph", "tf32", "cudnn_benchmark", "cudnn_conv_algo_search")  # options that do nothing on the CPU


class Configured:
    """Something with a name and options."""

    name: ClassVar[str]
    options: ClassVar[type[Struct]]

    @classmethod
    def parse_options(cls, case: Case) -> Any:
        """``case.options`` as ``cls.options``, texts converted to the types it names.

        Raises:
            InferlensError: for an unknown option (near misses are suggested) or a value of the wrong type.
        """
        known = {field.name for field in msgspec.structs.fields(cls.options)}
        for name in case.options:
            if name not in known:
                raise InferlensError(
                    f"Backend '{cls.name}' has no option '{name}'.",
                    expected=f"one of {', '.join(sorted(known)) or 'none'}",
                    hint=suggestion(name, known) or f"inferlens backends {cls.name}",
                )
        try:
            return msgspec.convert(case.options, cls.options, strict=False)
        except msgspec.ValidationError as error:
            name = str(error).rpartition("$.")[2].rstrip("`")
            hints = get_type_hints(cls.options, include_extras=True)
            raise InferlensError(
                f"The option {cls.name}.{name} does not take '{case.options[name]}'.", expected=values_of(hints[name])
            ) from error

    @classmethod
    def hint(cls, case: Case, option: str, value: Option, facts: Mapping[str, Any]) -> Hint:  # noqa: ARG003
        """How ``case`` gets what ``option`` does at ``value``: here by the option of that name, where there is one.

        Overridden where a variant does it, or an option does nothing for some cases. Asked when records are looked at,
        by :mod:`inferlens.analysis.findings.hints`, so nothing is imported for it.

        Args:
            case: what was run.
            option: as most backends name it; it need not be one of this backend.
            value: at which it does what is wanted.
            facts: of the record or the profile.
        """
        if option not in cls.options.__struct_fields__ or (option in ON_CUDA and case.device != "cuda"):
            return Hint()
        if getattr(cls.parse_options(case), option) == value:
            return Hint(asked=True)
        return Hint(f"{cls.name}.{option}={str(value).lower() if isinstance(value, bool) else value}")


def values_of(hint: Any) -> str:
    """The type of an option as a user writes its values: ``true|false``, ``all|basic``, ``whole number, 0 or more``."""
    kind, meta = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, None)
    if kind is bool:
        return "true|false"
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    names = {int: "whole number", float: "number", str: "text", type(None): ""}
    text = names[kind] if kind in names else " or ".join(filter(None, map(values_of, get_args(kind))))
    least, most = getattr(meta, "ge", None), getattr(meta, "le", None)
    if least is None:
        return text
    return f"{text}, {least} or more" if most is None else f"{text} from {least} to {most}"
