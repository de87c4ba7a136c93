"""Views draw records and nothing else: no view ever sees a runner, and none needs a framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferlens.registry import Registry

if TYPE_CHECKING:
    from inferlens.views.base import View

VIEWS: Registry[View] = Registry("inferlens.views", "view")
