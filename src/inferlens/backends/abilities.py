"""What some runners can do beside running: asked for by type, never by a backend's name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from inferlens.layer_profile import Layers


class LayerProfiler(ABC):
    """An ability of a runner: it can time its layers, if it was prepared for the level ``layer``."""

    @abstractmethod
    def profile_layers(self, feed: Any, runs: int) -> Layers:
        """Calls ``infer(feed)`` ``runs`` times, one after the other, and times the layers of every call.

        The runner is entered and warm. What is done between the layers is O(1) for each of them; what they are called
        and where they come from is worked out afterwards.

        Raises:
            Unsupported: if the library does not tell here, with what would cure it.
        """
