"""ITL of a decode replica as a function of its streams: ITL = floor + slope * streams, learned on line. Pure.

Each pod's (streams, ITL) of a load window is a sample; weighted least squares with exponential forgetting over
sufficient statistics. The line goes through the samples' centre; only its slope may be in doubt. While the samples
hardly differ in streams the slope is drawn (ridge) to the prior: half of the ITL at the centre is floor, half grows
with the streams. A sample that says that more streams are quicker, or fewer slower, than what was learned shows that
the pods, or what runs beside them, have changed: then the old samples give way at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

PRIOR_SLOPE_SHARE = 0.5
PRIOR_WEIGHT = 1.0
"""The prior counts as one load window of one pod whose streams vary as much as their mean."""
MEMORY_SECONDS = 600.0
"""Time constant of forgetting: prompt lengths (KV read in each step) drift within the hour, not within a minute."""
ENOUGH_TOKENS = 50.0
"""Gaps between tokens for a sample to count in full."""
HEADROOM = 0.9
"""A replica is filled to this share of the distance from the ITL of a single stream to the target: streams come in
lumps and the law is a mean."""
NEAR_ALONE = 2.0
"""Streams on a pod up to which a sample shows the ITL of a single stream."""
OTHER_STREAMS, OTHER_ITL = 1.3, 1.1
"""Ratios to the samples' centre from which on a sample that contradicts it is no noise."""
SURE_WEIGHT = 10.0
"""Load windows of a pod: fewer may all have been seen while streams and their ITL were still coming up together."""
SURE_SPREAD = 0.3
"""Spread of the streams over their mean from which on the floor is not an extrapolation of the prior."""


@dataclass(frozen=True)
class ItlLaw:
    """Weighted sums over the samples so far; no samples, no law."""

    weight: float = 0.0
    streams: float = 0.0
    """Weighted mean of the streams."""
    itl: float = 0.0
    """Weighted mean of the ITL, seconds."""
    spread: float = 0.0
    """Weighted sum of squared distances of streams from their mean."""
    joint: float = 0.0
    """Weighted sum of products of the distances of streams and ITL from their means."""
    widest: float = 0.0
    """Most streams of a sample; as samples grow old it comes down to their mean."""

    @property
    def has_samples(self) -> bool:
        return self.weight > 0

    @property
    def thin(self) -> bool:
        """The slope depends more on the prior than on the samples."""
        return self.spread < self._prior_strength

    @property
    def knows_alone(self) -> bool:
        """The ITL of a single stream follows from samples: pods had few streams, or their streams differ enough to show
        the slope. Otherwise it follows from the prior, which takes half of the ITL of many streams."""
        if self.weight <= 0:
            return False
        spread = math.sqrt(self.spread / self.weight)
        return self.streams <= NEAR_ALONE or (self.weight >= SURE_WEIGHT and spread >= SURE_SPREAD * self.streams)

    @property
    def _prior_strength(self) -> float:
        return PRIOR_WEIGHT * self.streams**2

    @property
    def slope(self) -> float:
        """Seconds of ITL that one more stream adds; never so steep that the floor would be below zero."""
        if not self.has_samples:
            return 0.0
        steepest = self.itl / self.streams
        prior = PRIOR_SLOPE_SHARE * steepest
        slope = (self.joint + self._prior_strength * prior) / (self.spread + self._prior_strength)
        return min(max(slope, 0.0), steepest)

    @property
    def floor(self) -> float:
        """Seconds of ITL with no stream at all."""
        return max(0.0, self.itl - self.slope * self.streams)

    @property
    def alone(self) -> float:
        """ITL of a stream that has a replica to itself."""
        return self.floor + self.slope

    def at(self, streams: float) -> float:
        """ITL with so many streams."""
        return self.floor + self.slope * streams if self.slope > 0 else self.floor

    def capacity(self, target: float) -> float:
        """Streams that a replica holds within HEADROOM of the target; at least one, no end where none slows another."""
        growth = self.alone + HEADROOM * (target - self.alone) - self.floor
        if self.slope <= 0:
            return math.inf if growth >= 0 else 1.0
        return max(1.0, growth / self.slope)

    def forget(self, seconds: float) -> ItlLaw:
        """The same law with less weight: what was learned grows old."""
        keep = math.exp(-seconds / MEMORY_SECONDS)
        widest = self.streams + keep * (self.widest - self.streams)
        return replace(self._with(keep), widest=widest)

    def _with(self, share: float) -> ItlLaw:
        """With so much of the weight."""
        return replace(self, weight=self.weight * share, spread=self.spread * share, joint=self.joint * share)

    def _contradicted(self, streams: float, itl: float, busy_throughout: bool) -> bool:
        more = streams > OTHER_STREAMS * self.streams and OTHER_ITL * itl < self.itl
        fewer = OTHER_STREAMS * streams < self.streams and itl > OTHER_ITL * self.itl
        return self.has_samples and (more or (fewer and busy_throughout))

    def learn(self, streams: float, itl: float, weight: float, *, busy_throughout: bool = True) -> ItlLaw:
        """With one more sample: the weighted update of D. H. D. West, "Updating mean and variance estimates: an
        improved method", Communications of the ACM 22(9), 1979.

        `busy_throughout`: the pod always had streams; otherwise it had more than the mean while it had any.
        """
        if weight <= 0 or streams <= 0 or itl <= 0:
            return self
        old = self._with(1 - min(1.0, weight)) if self._contradicted(streams, itl, busy_throughout) else self
        total = old.weight + weight
        from_streams, from_itl = streams - old.streams, itl - old.itl
        mean_streams = old.streams + from_streams * weight / total
        return ItlLaw(
            weight=total,
            streams=mean_streams,
            itl=old.itl + from_itl * weight / total,
            spread=old.spread + max(0.0, weight * from_streams * (streams - mean_streams)),
            joint=old.joint + weight * from_itl * (streams - mean_streams),
            widest=max(old.widest, old.streams + weight * (streams - old.streams)),
        )
