"""Options of commands. A field of a struct declares an option once.

``threads: Annotated[tuple[int, ...], OptionSpec("CPU threads inside a call.")] = ()`` declares a name, a type, a help
text and a default. The option of the command line, the keyword of the Python function, the word of a plan file and
their documentation are built from this declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from msgspec import Struct, structs

from inferlens.errors import InferlensError, check_choice
from inferlens.units import parse_duration, parse_share

DURATION, SHARE = "duration", "percent"  # units
WHERE = "Where it runs"  # a panel of the help


class OptionSpec(Struct, frozen=True):
    """The declaration of an option without its name, its type and its default.

    Attributes:
        help: the text for ``--help``.
        commands: the commands that have the option; empty: all commands of its struct.
        unit: ``duration`` (seconds inside) or ``percent`` (a share inside) of a number.
        values: the texts that are allowed; empty: any.
        default: the default to show where that of the field is ``None`` or empty: a number in the unit, or a text.
        least: the least whole number.
        positive: whether a duration must be longer than 0 seconds.
        repeatable: whether the option may be given several times.
        metavar: the placeholder of the value in the help; empty: that of the type.
        names: the names on the command line, if the field's name is not enough.
        panel: the panel of the help.
        read: a function that reads a list of values, or a table, instead of the function for the type.
    """

    help: str
    commands: tuple[str, ...] = ()
    unit: str = ""
    values: tuple[str, ...] = ()
    default: float | str | None = None
    least: int = 1
    positive: bool = False
    repeatable: bool = False
    metavar: str = ""
    names: tuple[str, ...] = ()
    panel: str = ""
    read: Callable[[Any], Any] | None = None


class OptionField(NamedTuple):
    """A declared option with the name, the type and the default of its field."""

    name: str
    type: Any
    default: Any
    option: OptionSpec

    @property
    def names(self) -> tuple[str, ...]:
        return self.option.names or (f"--{self.name.replace('_', '-')}",)

    @property
    def several(self) -> bool:
        """Return whether the option takes several values, separated by commas."""
        return get_origin(self.type) is tuple and not self.option.repeatable

    @property
    def shown_default(self) -> str | int | bool | None:
        """Return the default as a person writes it; ``None`` if there is nothing to show."""
        value: Any = self.default if self.option.default is None else self.option.default
        if self.several and self.option.default is None:
            value = ",".join(map(str, value))
        if isinstance(value, float) and self.option.unit == DURATION:
            unit, scale = ("h", 3600) if not value % 3600 else ("m", 60) if not value % 60 else ("s", 1)
            return f"{value / scale:g}{unit}"
        if isinstance(value, float):
            return f"{100 * value:g}%"
        return value if isinstance(value, (str, int)) and value != "" else None

    @property
    def help(self) -> str:
        """Return the help text, with a default that is described in words."""
        words = self.option.default
        return f"{self.option.help} Default: {words}." if isinstance(words, str) else self.option.help

    @property
    def keyword_default(self) -> str | int | bool | None:
        """Return the default as a value; ``None`` if there is none, or it is described in words."""
        return None if isinstance(self.option.default, str) else self.shown_default

    def read(self, value: Any) -> Any:
        """Return the value that a person wrote, in the type of the field. Raises InferlensError if it does not fit."""
        option = self.option
        if option.read:
            return option.read(value if isinstance(value, Mapping) else listed(value))
        if option.repeatable:
            return texts(value)
        if self.type is bool:
            if not isinstance(value, bool):
                raise InferlensError(f"'{value}' is not valid for {self.name}.", expected="true or false")
            return value
        if option.unit == DURATION:
            seconds = parse_duration(str(value))
            if option.positive and not seconds:
                raise InferlensError(f"{self.name} of 0 leaves no time for anything.", expected="such as 10s")
            return seconds
        if option.unit == SHARE:
            return share(self.name, value)
        if int in (self.type, *get_args(self.type)):
            numbers = [count(self.name, number, option.least) for number in (texts(value) if self.several else [value])]
            return tuple(numbers) if self.several else numbers[0]
        if self.several:
            return checked_texts(self.name, value, option.values) if option.values else texts(value)
        if option.values:
            check_choice(self.name, str(value), option.values)
        return str(value)


def option_fields(*kinds: type[Struct], command: str = "") -> dict[str, OptionField]:
    """Return the options that structs declare, by name. A field that is a struct is replaced by its options.

    A later struct replaces options of the same name. With ``command`` only its options are returned.
    """
    fields: dict[str, OptionField] = {}
    for field in (field for kind in kinds for field in structs.fields(kind)):
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            fields |= option_fields(field.type, command=command)
        elif get_origin(field.type) is Annotated:
            kind, *extras = get_args(field.type)
            option = next(extra for extra in extras if isinstance(extra, OptionSpec))
            if not command or not option.commands or command in option.commands:
                fields[field.name] = OptionField(field.name, kind, field.default, option)
    return fields


# The values of options, as a person writes them.


def listed(value: Any) -> tuple[Any, ...]:
    """Return a list of values, or a single value, as a tuple."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def texts(value: Any) -> tuple[str, ...]:
    """Return texts from a text with commas, a list of such texts, or single values of another type."""
    lists = [str(text).lower() if isinstance(text, bool) else str(text) for text in listed(value)]
    return tuple(text.strip() for list_text in lists for text in list_text.split(",") if text.strip())


def checked_texts(name: str, value: Any, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return texts that must all be among ``values``. Raises InferlensError for others, and suggests near misses."""
    given = texts(value)
    for text in given:
        check_choice(name, text, values)
    return given


def count(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number. Raises InferlensError if it is none, or less than ``least``."""
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least:
        raise InferlensError(f"'{value}' is not valid for {name}.", expected=f"a whole number, {least} or more")
    return number


def share(name: str, value: Any) -> float:
    """Return a share between 0 and 1. Raises InferlensError if it is none."""
    number = parse_share(str(value))
    if not 0 < number < 1:
        message = f"'{value}' is not a percentage for {name}."
        raise InferlensError(message, expected="more than 0 and less than 100%, such as 1%")
    return number
