"""Jobs that begin when they can, and share devices and ports, in virtual time.

Called by timeline.py, whose docstring has the model, on the notebook's kernel.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

DEVICE = "device"  # beside ports, which are tuples
PROCESSOR = "processor"  # likewise
MOST_LOST = 0.9  # of the speed of kernels, as some multiprocessor is always left

# what a job uses alone or shares: the device or a port, of the recording with this number
Use = tuple[int, Hashable]


@dataclass(eq=False)
class Stretch:
    """What a processor launches from one wait to the next.

    Attributes:
        begin: when the wait before has ended; None if that is not known yet.
        held: jobs that could begin if they were launched.
    """

    begin: float | None = None
    held: list["Job"] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Job:
    """A kernel, a call of all its members, or a processor's wait.

    It begins when nothing is unmet any more, and it was launched on all of its ranks.

    Attributes:
        unmet: predecessors that have not ended, plus members that have not called it.
        left: seconds at full speed, as of the time `since`.
        load: the share of a port's bandwidth that a call takes at full speed; None for a kernel.
        contention: the share of their speed that kernels of the same devices lose meanwhile.
        uses: the devices and ports that it shares with other jobs.
        following: jobs that wait for its end.
        launches: of each of its ranks, in which stretch it is launched, and how many seconds after
            the stretch's begin.
        opens: of a wait, the stretch after it.
        is_due: whether it begins as soon as it is launched, and that is known.
        ready: when nothing was unmet any more.
        speed: the share of full speed at which it goes on; 0 before it begins and after its end.
        since: when `left` was right.
        begin: when it has begun.
        end: when it will end at this speed, or has ended.
    """

    unmet: int
    left: float = 0.0
    load: float | None = None
    contention: float = 0.0
    uses: list[Use] = field(default_factory=list)
    following: list["Job"] = field(default_factory=list)
    launches: list[tuple[Stretch, float]] = field(default_factory=list)
    opens: Stretch | None = None
    is_due: bool = False
    ready: float = 0.0
    speed: float = 0.0
    since: float = 0.0
    begin: float = 0.0
    end: float = 0.0


class Simulation:
    """Jobs under way, from the end of one to the end of the next.

    Args:
        most_lost: the share of their speed that kernels lose at most to calls beside them.
    """

    def __init__(self, most_lost: float) -> None:
        self._most_lost = most_lost
        self._using: defaultdict[Use, dict[Job, None]] = defaultdict(dict)
        self._now = 0.0
        self._numbers = itertools.count()
        # (end or begin, number of the entry, job), as a heap; the number keeps jobs from being
        # compared
        self._times: list[tuple[float, int, Job]] = []

    def run(self, jobs: Iterable[Job]) -> None:
        """Find when each job begins and ends; of one that never begins, something stays unmet."""
        ready = [job for job in jobs if not job.unmet]
        for job in ready:
            self._begin_if_launched(job)
        while self._times:
            time, _, job = heapq.heappop(self._times)
            if job.is_due:
                job.is_due = False
                self._now = time
                self._begin(job)
            # otherwise the entry is out of date: the speed has changed since, or the job has ended
            elif job.end == time and job.speed:
                self._now = time
                self._end(job)

    def _begin_if_launched(self, job: Job) -> None:
        """Begin a job for which nothing is unmet, now or when it is launched."""
        job.ready = self._now
        self._hold(job)

    def _hold(self, job: Job) -> None:
        launched = self._now
        for stretch, offset in job.launches:
            if stretch.begin is None:
                stretch.held.append(job)
                return
            launched = max(launched, stretch.begin + offset)
        if launched <= self._now:
            self._begin(job)
        else:
            job.is_due = True
            heapq.heappush(self._times, (launched, next(self._numbers), job))

    def _begin(self, job: Job) -> None:
        job.begin = self._now
        job.since = self._now
        for use in job.uses:
            self._using[use][job] = None
        self._update_speeds(job)

    def _end(self, job: Job) -> None:
        job.speed = 0.0
        for use in job.uses:
            del self._using[use][job]
        self._update_speeds(job)
        for following in job.following:
            following.unmet -= 1
            if not following.unmet:
                self._begin_if_launched(following)
        if job.opens is not None:
            job.opens.begin = self._now
            for held in job.opens.held:
                self._hold(held)
            job.opens.held.clear()  # they know the stretch, and would stay with it as garbage

    def _update_speeds(self, changed: Job) -> None:
        """Find the speeds of a job that has begun or ended, and of all that share with it."""
        sharing: dict[Job, None] = {}  # in the order in which they are found
        for use in changed.uses:
            sharing.update(self._using[use])
        for job in sharing:
            speed = self._speed_of(job)
            if speed == job.speed:
                continue
            job.left -= (self._now - job.since) * job.speed
            job.since = self._now
            job.speed = speed
            job.end = self._now + job.left / speed
            heapq.heappush(self._times, (job.end, next(self._numbers), job))

    def _speed_of(self, job: Job) -> float:
        """The share of full speed that a job has beside those that are under way."""
        if job.load is None:
            (device,) = job.uses  # of a kernel, nothing else
            lost = 0.0
            for other in self._using[device]:
                lost += other.contention
            return 1 - min(lost, self._most_lost)
        slowest = 1.0
        for use in job.uses:
            _, what = use
            if what != DEVICE:
                slowest = max(slowest, self._load_of(use))
        return 1 / slowest

    def _load_of(self, port: Use) -> float:
        """The share of a port's bandwidth that the calls under way would take at full speed."""
        return sum(other.load for other in self._using[port] if other.load is not None)
