"""Budget "auto": in every step the number of nodes that promises the most tokens a second.

The promise of b nodes is (1 + the sum of their path probabilities) / (time of a whole step at b + 1 rows).
The tree is drafted once, at a ceiling, and cut: best-first trees are nested (DDTree, arXiv 2604.12989). Times
are those of the past, and the choice is made before the target sees the tree, so that what is committed stays
an exact sample of the target.

A pass of the target costs a staircase in its rows. `StepTimes` measures it once, before the first step that
needs it, and follows every step from then on: a machine that slows down, a context that grows. `AutoBudget`
is one run's: how far its drafter's probabilities may be believed, and whether drafting pays at all.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ddtree.trace import AutoChoice, Timing

STAIRS = (1, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of a pass at which its time is known. Between two of them the upper one's is charged."""

FIRST_STAIRS = 7
"""Stairs that are measured before the first step, the time allowing."""

MEASURE_S = 0.3
"""Seconds after which no further pass is measured; the first two stairs always are."""

_TREND, _OWN = 0.2, 0.02
"""The newest step's weight in how fast the machine is now, and in a stair's own time."""

_REMEMBERED = 9
"""Steps whose median is what a step spends outside the target's pass."""

_FURTHEST = 2.0
"""A time further than this factor from what was expected counts as one that is so far away: hiccups."""

BINS = (0.5, 0.125, 0.03125)
"""Lower ends of the classes of path probability, but for the last one, that each have a correction."""

DOUBT = 4.0
"""Expected acceptances after which a class's own count weighs as much as the drafter's word."""

WINDOW = 8
"""Drafted steps, about, over which drafting must promise more than plain decoding."""

LONGEST_PAUSE = 8
"""Steps at most without drafting, before drafting is tried again."""


class StepTimes:
    """Milliseconds that steps take: of the target's pass by its rows, and of the rest by the drafter."""

    def __init__(self, passes: Mapping[int, float] | None = None) -> None:
        """passes: milliseconds by rows that need not be measured any more."""
        self.measured = passes is not None
        self._pass: dict[int, float] = dict(passes or {})
        self._trend = 1.0  # all passes of late to their own times
        self._rest: dict[str | None, deque[float]] = {}

    @property
    def known(self) -> list[int]:
        """The stairs that have a time, ascending."""
        return sorted(self._pass)

    def measure(self, run_pass: Callable[[int], object]) -> None:
        """Time `run_pass(rows)` at the first stairs: twice, the faster counts, while MEASURE_S allow it."""
        self.measured = True
        began = time.perf_counter()
        for repeat in range(2):
            for stair in STAIRS[:FIRST_STAIRS]:
                must = repeat == 0 and stair in STAIRS[:2]
                if not must and time.perf_counter() - began > MEASURE_S:
                    return
                start = time.perf_counter()
                run_pass(stair)
                ms = (time.perf_counter() - start) * 1e3
                self._pass[stair] = min(ms, self._pass.get(stair, math.inf))

    def of_passes(self, most: int) -> list[float]:
        """Of 1 to `most` rows, as far as the largest stair that has a time."""
        known, ms = self.known, []
        for rows in range(1, min(most, known[-1]) + 1):
            ms.append(self._pass[known[bisect_left(known, rows)]] * self._trend)
        return ms

    def of_rest(self, source: str | None) -> float:
        """What a step spends outside the pass when `source` drafts, None: nobody. 0 before there was one."""
        return median(self._rest[source]) if source in self._rest else 0.0

    def saw(self, source: str | None, rows: int, timing: Timing, warm: bool = True) -> None:
        """A step that was made. warm: its drafter had not to catch up."""
        if timing.verify is None or timing.sample is None:
            return  # one graph ran all stages
        ms = timing.verify + timing.sample
        if self.measured and rows in STAIRS:
            self._saw_pass(rows, ms)
        rest = timing.total - ms
        if None not in self._rest:
            self._remember(None, rest - (timing.draft or 0.0))
        if warm:
            self._remember(source, rest)

    def _saw_pass(self, rows: int, ms: float) -> None:
        if rows not in self._pass:
            self._pass[rows] = ms / self._trend
            return
        ms = _near(ms, self._pass[rows] * self._trend)
        own = ms / self._trend
        self._trend += _TREND * (ms / self._pass[rows] - self._trend)
        self._pass[rows] += _OWN * (own - self._pass[rows])

    def _remember(self, source: str | None, ms: float) -> None:
        self._rest.setdefault(source, deque(maxlen=_REMEMBERED)).append(ms)


class AutoBudget:
    """The choices of one run. `ceiling` before drafting, `choose` before the pass, `saw` after every step."""

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._expected = np.zeros(len(BINS) + 1)  # by class: the drafter's probabilities of nodes scored
        self._accepted = np.zeros(len(BINS) + 1)
        self._beyond = False  # the largest stair was the best: measure the one above
        self._drafted = 0
        self._gain = 1.0  # what drafted steps of late promised, to plain decoding's tokens a second
        self._waiting = self._pause = 0  # steps still to come without drafting; how many they were
        self._caught_up: set[str] = set()  # drafters that have seen the prompt

    @property
    def ceiling(self) -> int:
        """The largest budget worth looking at in this step; 0: do not draft."""
        if self._waiting:
            return 0
        known = self._times.known
        above = [stair for stair in STAIRS if stair > known[-1]]
        return (above[0] if self._beyond and above else known[-1]) - 1

    def choose(
        self, source: str | None, log_weights: NDArray[np.float64], ceiling: int
    ) -> tuple[int, AutoChoice]:
        """(budget, what it promises) of the nodes with these log-weights [N], in the order of their numbers,
        drafted by `source` (None: by nobody) with `ceiling` nodes at most. The smallest among equals."""
        emitted, ms = self.promises(source, log_weights)
        if len(emitted) > len(ms):  # drafted to learn what the stair above costs
            self._beyond = False
            best, expected = len(log_weights), ms[-1]
        else:
            best = int(np.argmax(emitted / ms))
            self._beyond = best + 1 == self._times.known[-1]
            expected = ms[best]
            self._judge(source, emitted[best] / expected)
        return best, AutoChoice(ceiling=ceiling, emitted=float(emitted[best]), ms=float(expected))

    def promises(
        self, source: str | None, log_weights: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(expected tokens [N + 1], milliseconds [at most N + 1]) of budgets from 0; times end with the
        largest stair that has one."""
        probs = np.exp(log_weights) * self._belief()[_classes(log_weights)]
        emitted = 1.0 + np.concatenate(([0.0], np.cumsum(probs)))
        return emitted, self._times.of_rest(source) + np.array(self._times.of_passes(len(emitted)))

    def saw(
        self, source: str | None, log_weights: NDArray[np.float64], path: Sequence[int], timing: Timing
    ) -> None:
        """A step was made, whoever chose its budget: the nodes that were scored, the walk's path (root first)
        and its times."""
        warm = source is None or source in self._caught_up
        self._times.saw(source, len(log_weights) + 1, timing, warm)
        if source is None:
            return
        self._caught_up.add(source)
        classes, accepted = _classes(log_weights), np.array(path[1:], dtype=np.int64) - 1
        np.add.at(self._expected, classes, np.exp(log_weights))
        np.add.at(self._accepted, classes[accepted], 1.0)

    def _judge(self, source: str | None, speed: float) -> None:
        """Whether to go on drafting: not while its tokens a millisecond of late are fewer than plain ones."""
        if source is None:
            self._waiting = max(self._waiting - 1, 0)
            return
        plain = 1 / (self._times.of_passes(1)[0] + self._times.of_rest(None))
        self._drafted += 1
        self._gain += (speed / plain - self._gain) / min(self._drafted, WINDOW)
        if self._gain >= 1 or self._drafted < WINDOW:
            self._pause = 0
        else:
            self._waiting = self._pause = min(2 * self._pause or 2, LONGEST_PAUSE)

    def _belief(self) -> NDArray[np.float64]:
        """By class: what the drafter's probabilities are multiplied with."""
        return (self._accepted + DOUBT) / (self._expected + DOUBT)


def _classes(log_weights: NDArray[np.float64]) -> NDArray[np.intp]:
    """The class of each path probability: 0 holds the largest."""
    return np.searchsorted(-np.log(BINS), -log_weights)


def _near(ms: float, expected: float) -> float:
    return min(max(ms, expected / _FURTHEST), expected * _FURTHEST)
