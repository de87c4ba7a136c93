"""Where a plan runs: which launcher starts its cases, at which address, and on what. Not part of what a case is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from inferlens.errors import InferlensError

LOCAL, RAY = "local", "ray"
WHERE_WORDS = ("devices", "ray", "launcher", "on", "runtime_env")


class Where(Struct, frozen=True, kw_only=True):
    """Where a plan runs.

    Attributes:
        launcher: what starts its cases, by the name of its entry point.
        address: what that one is to connect to, in its own words.
        on: what cases are measured on, such as ``cuda:0`` here, or ``H200:2`` elsewhere; empty: what is usual.
        runtime_env: file (TOML) of the environment that is made on other machines; empty: what is there.
    """

    launcher: str = LOCAL
    address: str = ""
    on: tuple[str, ...] = ()
    runtime_env: str = ""


def where_of(words: Mapping[str, Any]) -> Where:
    """Where words of a plan say that it runs; lists are texts with commas, or lists.

    Raises InferlensError if they contradict each other.
    """
    given = [name for name in ("devices", "ray", "launcher") if words.get(name)]
    if len(given) > 1:
        first, second = given[:2]
        raise InferlensError(f"{first} and {second} both say where cases run.", expected="one of them")
    for name in ("on", "runtime_env"):
        if words.get(name) and given in ([], ["devices"]):
            hint = "--devices alone" if given and name == "on" else "--ray auto, or HOST:PORT"
            raise InferlensError(f"{name} says what to use of other machines, and none are named.", hint=hint)
    devices, on = (_texts(words.get(name, ())) for name in ("devices", "on"))
    for name, expected in (("devices", "all, or such as cuda:0,cuda:1"), ("ray", "local, auto, or HOST:PORT")):
        if name in words and not _texts(words[name]):
            raise InferlensError(f"{name} names none.", expected=expected)
    name, _, address = str(words.get("launcher", "")).partition(":")
    if ray := str(words.get("ray", "")):
        name, address = RAY, ray
    return Where(
        launcher=name or LOCAL, address=address, on=devices or on, runtime_env=str(words.get("runtime_env", ""))
    )


def _texts(value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(part.strip() for item in items for part in str(item).split(",") if part.strip())
