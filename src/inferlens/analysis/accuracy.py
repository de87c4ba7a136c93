"""What a case's answers are worth, and what that is below fp32: from the values that its record keeps of each sample.

Values that are all hits and misses are a share, and a drop is the difference of two shares. A measure of another kind
may have any unit: its drop is relative to the value of the reference.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.runs import CaseRuns
from inferlens.record.record import AGREEMENT, Accuracy
from inferlens.stats.intervals import Interval
from inferlens.stats.shares import difference_of_means, difference_of_shares, share_interval


class Worth(Struct, frozen=True):
    """A value, and how far it is below the reference's: positive is worse, ``None`` where there is none to compare."""

    value: float
    interval: Interval | None
    share: bool
    drop: float | None = None
    drop_interval: Interval | None = None


def accuracy_of(run: CaseRuns) -> Accuracy | None:
    """The accuracy of the first process that has it."""
    return next((record.accuracy for record in run.records if record.accuracy), None)


def measured_drop(accuracy: Accuracy | None) -> float | None:
    """How far a measure is below the reference's; how often answers are the same without labels is no measure."""
    known = worth(accuracy)
    return known.drop if known and accuracy and accuracy.metric != AGREEMENT else None


class WorthOfTwo(Struct, frozen=True, kw_only=True):
    """What the answers of A and of B are worth in ``metric``, and how far B's are below A's, sample by sample."""

    metric: str
    count: int
    share: bool
    a: float
    b: float
    drop: float | None = None
    drop_interval: Interval | None = None


def worth_of_two(a: Accuracy | None, b: Accuracy | None) -> WorthOfTwo | None:
    """The two against each other; ``None`` where one of them is not known, or is another measure."""
    if not a or not b or a.metric != b.metric or not (a.values and b.values):
        return None
    known = worth(replace(b, reference_values=a.values))
    assert known
    return WorthOfTwo(
        metric=b.metric, count=b.count, share=known.share, a=fmean(a.values), b=known.value, drop=known.drop,
        drop_interval=known.drop_interval,
    )  # fmt: skip


@lru_cache(maxsize=256)
def worth(accuracy: Accuracy | None) -> Worth | None:
    """What values add up to; ``None`` without any. Without labels what differs from fp32 is all that can be lost."""
    if not accuracy or not accuracy.values:
        return None
    own, other = accuracy.values, accuracy.reference_values
    value, share = fmean(own), len(own) > 1 and {*own, *other} <= {0.0, 1.0}
    interval = share_interval(sum(own), len(own)) if share else difference_of_means(own, [0.0] * len(own))
    if accuracy.metric == AGREEMENT and not other:
        lost = share_interval(len(own) - sum(own), len(own))
        return Worth(value, interval, share, 1 - value, lost)
    if len(other) != len(own):
        return Worth(value, interval, share)
    if share:
        return Worth(value, interval, share, fmean(other) - value, difference_of_shares(other, own))
    scale, between = abs(fmean(other)), difference_of_means(other, own)
    if not scale:
        return Worth(value, interval, share)
    relative = Interval(between.low / scale, between.high / scale) if between else None
    return Worth(value, interval, share, (fmean(other) - value) / scale, relative)
