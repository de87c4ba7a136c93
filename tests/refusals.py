"""What is refused is refused by one message."""

from collections.abc import Callable
from typing import Any

import pytest

from inferlens.errors import InferlensError


def refusal(words: str, act: Callable[..., Any], *arguments: Any, **named: Any) -> InferlensError:
    """The error of a call that is refused, in whose message this pattern is found."""
    with pytest.raises(InferlensError, match=words) as raised:
        act(*arguments, **named)
    return raised.value
