"""Which rounds of the window each job runs, by its number of rounds (Shockwave, NSDI 2023, section 7, Appendix H)."""

from __future__ import annotations

import numpy as np

from policies.shockwave.market import Bools, Floats, Ints, Market

ROUNDING = 1e-9
"""Amounts of resources that are no difference."""

MOST_EXCHANGES = 6000
"""Rounds of other jobs that are moved to make place, times the rounds of the window, at most."""


class Layout:
    """A schedule that is being built.

    Attributes:
        rows: by job, the market's row in which it runs.
        runs: jobs x rounds, whether the job runs.
        free: rounds x resources, amounts that are free; negative where pinned jobs need more than there is.
    """

    def __init__(self, market: Market) -> None:
        self._market = market
        self.rows: Ints = market.first_row.copy()
        self.runs: Bools = np.zeros((len(market.keys), market.window.rounds), dtype=bool)
        self.free: Floats = np.tile(market.capacity, (market.window.rounds, 1))

    def pin(self) -> None:
        """Give pinned jobs all rounds until their work is done."""
        market = self._market
        for job in np.flatnonzero(market.pinned).tolist():
            row = int(self.rows[job])
            self._add(job, row, np.arange(self._useful(row, market.window.rounds)))

    def lay_out(self, rows: Ints, rounds: Ints, order: Ints, worths: Floats, impatience: float) -> None:
        """Give jobs their numbers of rounds, as early as they can, in one piece where that is possible.

        A job that fits in no single piece is divided. Where it fits in too few rounds, other jobs move rounds to make
        place for it, if it gains more than they lose by restarts and by delay; it may get fewer rounds all the same.

        Args:
            rows: by job, the row in which it is to run.
            rounds: by job, the number of rounds.
            order: the jobs in the order in which they get their rounds.
            worths: by job, what each of its rounds contributes to the objective, on average.
            impatience: the part of its worth that a round loses from the begin to the end of the window.
        """
        exchanges = MOST_EXCHANGES // self._market.window.rounds
        for job in order[rounds[order] > 0].tolist():
            row, wanted = int(rows[job]), int(rounds[job])
            self._add(job, row, _pieces(self._slack(row), wanted))
            while exchanges and self.runs[job].sum() < wanted and self._exchange(job, row, worths, impatience):
                exchanges -= 1

    def repeat(self, job: int, row: int, rounds: Ints) -> None:
        """Give a job those of some rounds, in ascending order, that are free and of use."""
        fitting = rounds[self._slack(row)[rounds] >= 1]
        self._add(job, row, fitting[: self._useful(row, len(fitting))])

    def fill(self, prices: Floats, load_share: float) -> None:
        """Give free resources, round by round, to the jobs that gain the most by their price.

        At the end no job that could gain by a round fits into what is free there.

        Args:
            prices: for each resource, the price of its whole supply in the window.
            load_share: the part of the makespan's weight that the load has.
        """
        market, gave = self._market, True
        costs = (market.needs / np.maximum(market.capacity, ROUNDING)) @ prices + ROUNDING * market.row_gpus
        while gave:
            gave = False
            for number in np.flatnonzero((self.free > ROUNDING).any(axis=1)).tolist():
                rows = self._candidates(number)
                if not len(rows):
                    continue
                gains = self._gains(rows, number, load_share)
                rows, ratios = rows[gains > 0], (gains / costs[rows])[gains > 0]
                for row in rows[np.argsort(-ratios, kind="stable")].tolist():
                    job = int(market.job[row])
                    if not self.runs[job, number] and (market.needs[row] <= self.free[number] + ROUNDING).all():
                        self._add(job, row, np.array([number]))
                        gave = True

    def progress(self) -> Floats:
        """By job, the progress in the window, in parts of the whole job."""
        return self._market.progress(self.rows, self._seconds(self.rows, self.runs)[:, None])[:, 0]

    def objective(self) -> float:
        """The market's objective of this schedule."""
        return self._market.objective(self.progress())

    def delay(self) -> float:
        """The mean round in which progress is made, in rounds times what the progress contributes to the objective."""
        market, jobs = self._market, np.arange(len(self._market.keys))
        progress = np.column_stack([np.zeros(len(jobs)), self.progress()])
        welfare = market.welfare(jobs, progress)
        rounds = self.runs.sum(axis=1)
        middle = (self.runs * np.arange(self.runs.shape[1])).sum(axis=1) / np.maximum(rounds, 1)
        return float(((welfare[:, 1] - welfare[:, 0]) * middle).sum())

    def _add(self, job: int, row: int, rounds: Ints) -> None:
        if len(rounds):
            self.rows[job] = row
            self.runs[job, rounds] = True
            self.free[rounds] -= self._market.needs[row]

    def _exchange(self, job: int, row: int, worths: Floats, impatience: float) -> bool:
        """Give a job one more round by moving a round of another job, where that is worth it.

        Args:
            job: the job that lacks a round.
            row: the row in which it runs.
            worths: by job, what one of its rounds contributes to the objective.
            impatience: the part of its worth that a round loses from the begin to the end of the window.

        Returns:
            Whether a round was moved: of all moves the one with the largest gain, restarts and delay included.
        """
        market, window = self._market, self._market.window
        delay, restart = impatience / window.rounds, market.restart_seconds / window.round_seconds
        most, move = 0.0, None
        open_rounds = np.flatnonzero((self.free > ROUNDING).any(axis=1))
        padded = np.pad(self.runs, ((0, 0), (1, 1))).astype(int)
        padded[:, 0] = market.running[self.rows]
        padded[job, 0] = market.running[row]
        for number in np.flatnonzero(~self.runs[job]).tolist():
            lacking = market.needs[row] - self.free[number] - ROUNDING
            others = np.flatnonzero(self.runs[:, number] & ~market.pinned)
            others = others[(market.needs[self.rows[others]] >= lacking).all(axis=1)]
            fits = (market.needs[self.rows[others]][:, None] <= self.free[open_rounds] + ROUNDING).all(axis=2)
            fits &= ~self.runs[others][:, open_rounds]
            if not fits.any():
                continue
            neighbours = padded[:, number] + padded[:, number + 2]
            added = padded[others][:, open_rounds] + padded[others][:, open_rounds + 2]
            starts = (neighbours[others][:, None] - added) * restart[self.rows[others]][:, None]
            losses = worths[others][:, None] * (starts + delay * (open_rounds - number))
            gain = worths[job] * (1.0 - (1 - neighbours[job]) * restart[row] - delay * number)
            gains = np.where(fits, gain - losses, -np.inf)
            if gains.max() > most:
                most = float(gains.max())
                other, place = divmod(int(gains.argmax()), gains.shape[1])
                move = number, int(others[other]), int(open_rounds[place])
        if move is None:
            return False
        number, moved, to = move
        self.runs[moved, number] = False
        self.free[number] += market.needs[self.rows[moved]]
        self._add(moved, int(self.rows[moved]), np.array([to]))
        self._add(job, row, np.array([number]))
        return True

    def _slack(self, row: int) -> Floats:
        """By round, how many jobs with the needs of a row fit."""
        needs = self._market.needs[row]
        return np.asarray(np.floor((self.free[:, needs > 0] + ROUNDING) / needs[needs > 0]).min(axis=1))

    def _useful(self, row: int, rounds: int) -> int:
        """The number of rounds after which the job's work is done, or ``rounds`` if that is less."""
        market = self._market
        start = 0.0 if market.running[row] else market.restart_seconds[row]
        return min(rounds, int(np.ceil((market.corner_seconds[row, -1] + start) / market.window.round_seconds)))

    def _candidates(self, number: int) -> Ints:
        """The rows in which jobs could run in one round."""
        market = self._market
        open_rows = (market.needs <= self.free[number] + ROUNDING).all(axis=1)
        idle = (self.runs.sum(axis=1)[market.job] == 0) | (np.arange(len(market.job)) == self.rows[market.job])
        free = ~self.runs[market.job, number] & ~market.pinned[market.job]
        return np.flatnonzero(open_rows & idle & free)

    def _gains(self, rows: Ints, number: int, load_share: float) -> Floats:
        """What the objective gains by one more round of each row."""
        market, jobs = self._market, self._market.job[rows]
        before, after = self.runs[jobs], self.runs[jobs].copy()
        after[:, number] = True
        seconds = np.column_stack([self._seconds(rows, before), self._seconds(rows, after)])
        progress = market.progress(rows, seconds)
        work = market.work_seconds(jobs, market.remaining(jobs, progress))
        value = market.welfare(jobs, progress) - load_share * market.makespan_weight * work
        return np.asarray(value[:, 1] - value[:, 0])

    def _seconds(self, rows: Ints, runs: Bools) -> Floats:
        """Seconds of training in the window, by row and the rounds in which it runs."""
        market = self._market
        restarts = self._starts(rows, runs) * market.restart_seconds[rows]
        return np.asarray(np.maximum(runs.sum(axis=1) * market.window.round_seconds - restarts, 0.0))

    def _starts(self, rows: Ints, runs: Bools) -> Ints:
        """Starts in the window, by row and the rounds in which it runs."""
        return np.asarray((runs & ~np.column_stack([self._market.running[rows], runs[:, :-1]])).sum(axis=1))


def _pieces(slack: Floats, wanted: int) -> Ints:
    """Rounds for a job: the first ones without a break in which it fits.

    Args:
        slack: by round, how many jobs with the same needs fit.
        wanted: the number of rounds, from 1 to all.

    Returns:
        Rounds; in several pieces where one would be too short, and fewer than wanted where the job fits into fewer.
    """
    least = np.lib.stride_tricks.sliding_window_view(slack, wanted).min(axis=1)
    if least.max() >= 1:
        begin = int((least >= 1).argmax())
        return np.arange(begin, begin + wanted)
    return np.flatnonzero(slack >= 1)[:wanted]
