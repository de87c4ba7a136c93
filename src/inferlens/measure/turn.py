"""Whose turn it is to use the machine: here, always one's own."""

from __future__ import annotations


class Turn:
    """A process that has the machine for itself.

    Attributes:
        chunk_seconds: how long calls are timed between two looks at the stopping rule and at whose turn it is.
        chunk_calls: and how many calls at least.
        lead: seconds of calls, and one call at least, that a turn begins with and that are no samples; 0 for none.
        chunks_a_report: after how many chunks the progress is shown, which takes the machine, too.
        over: whether the other one, if there is one, has enough samples, too, or has ended.
        waited: seconds spent waiting so far.
    """

    chunk_seconds = 0.2
    chunk_calls = 1
    lead = 0.0
    chunks_a_report = 1
    over = True
    waited = 0.0

    def wait(self, *, enough: bool = False) -> None:
        """Lets the other one go on, and waits for one's own turn; ``enough`` says that one has enough samples."""
