"""What was not as it should be in a trace: counted while reading, told in sentences."""

from __future__ import annotations

from collections import Counter

from inferlens.units import plural

_LONGEST = 160


class Notes:
    """Counts of what was skipped or mended, by reason; and single remarks."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.remarks: list[str] = []

    def count(self, reason: str, number: int = 1) -> None:
        """``number`` more events to which ``reason`` happened, such as ``were skipped: no time``."""
        if number:
            self.counts[reason] += number

    def remark(self, sentence: str) -> None:
        """One more sentence, once."""
        if sentence not in self.remarks:
            self.remarks.append(sentence)

    def sentences(self) -> tuple[str, ...]:
        """The remarks, and a sentence for each reason."""
        counted = (f"{plural(number, 'event')} {reason}." for reason, number in self.counts.items())
        return (*self.remarks, *counted)
