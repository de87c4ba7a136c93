"""Views draw records and nothing else: no view ever sees a runner, and none needs a framework."""

from __future__ import annotations

from inferlens.registry import Registry
from inferlens.views.base import View

VIEWS: Registry[View] = Registry("inferlens.views", "view")
