"""A learner's workers: their measured rates, which of them are active, the overlap model's prediction.

    heartbeat ──▶ installed version, availability, reward        ┐
    delivery  ──▶ rollouts per second, by worker                 ├──▶ demand, rate ──▶ who is active
    step      ──▶ seconds of training and of waiting             ┘

Source: arXiv:2602.02192, sections 3.4, 3.5, 4.3 and appendix B.2.1.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import islice

from msgspec import Struct, field

from swarm.extras.learner.capacity import Demand, Worker, bubble_ratio, cheapest, pool_rate, required_rate
from swarm.following import LearnerSettings
from swarm.types import Heartbeat, Orders, Terms

HEARTBEAT_S = 1.0
LATE = 3.0
"""A worker counts as absent after this many heartbeat intervals without one."""
WINDOW_S = 60.0
"""Window for rates and availability. That for rates is as many of the learner's steps as take this long."""
WINDOW_STEPS = 3
"""Least steps of that window, once there are as many."""
MIN_WINDOW_S = 5.0
"""Least time to measure a rate."""
NUM_STEPS = 5
"""The learner's times are medians over this many steps; its bubble is a mean over four times as many."""
MAX_WORKERS = 1_024
FORGOTTEN_AFTER_S = 3_600.0
MAX_TRIES = 64.0
"""Groups sampled for each one delivered, of a worker that has delivered nothing yet."""
TRIES_MARGIN = 1.5
"""A heartbeat counts what it knows, not what is on its way."""
TRIES_OF_OTHERS = 4.0
"""A worker may sample so many times as many as the others for each one delivered: it may have fewer tasks."""
FAREWELL_S = 10.0
"""At the end the learner waits this long for workers with a heartbeat within this time, to notify them."""


class WorkerState(Struct):
    """The known state of one worker."""

    since: float
    """Time of its first heartbeat; all times are seconds on the learner's clock."""
    seen: float
    heartbeat: Heartbeat
    active: bool = True
    availability: float = 1.0
    rate: float | None = None
    """Rollouts per second while active; None until measured."""
    num_delivered: int = 0
    """Its admissible rollouts in the learner's current step."""
    present_s: float = 0.0
    """Its time of presence in the learner's current step, as far as it is counted."""
    by_step: deque[tuple[float, int, float]] = field(default_factory=deque)
    """(time at the end, rollouts, seconds of presence) of the learner's steps in the window, in which it was active;
    the window begins at the end of the first."""
    num_completions: int = 0
    """Completions by its heartbeats; like `rewards` in no mean of rewards yet."""
    rewards: float = 0.0
    """Sum over these completions."""
    num_admitted: int = 0
    """Its admissible rollouts since it was last in such a mean."""
    recently: tuple[float, float] = (0.0, 0.0)
    """Completions by its heartbeats and admissible rollouts, both with a half-life of `WINDOW_S`."""


class Outlook(Struct, frozen=True):
    """Prediction and measurement; None for values that are not known yet."""

    num_workers: int
    """Workers present now."""
    num_active: int
    rate: float
    """Expected rollouts per second: availability times measured rate, over the active workers."""
    required_rate: float | None
    """mu_min by the measured times; None also when no rate suffices."""
    train_s: float | None
    broadcast_s: float | None
    bubble: float | None
    """Measured fraction of its time that the learner waited."""
    predicted_bubble: float | None


class Workforce:
    """Tracks workers and selects the active ones. The network thread calls `beat`, the learner's thread everything
    else.

    A learner takes in nothing while it trains: what arrives then counts in its next step. So rates are measured over
    whole steps.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        clock: Callable[[], float],
        terms: Terms | None = None,
        established: Callable[[], Collection[str]] | None = None,
    ) -> None:
        """Start without workers. `terms` are sent to them. `established` are those that have been useful for long
        enough to be relied on, by default all."""
        self._established = established
        self._settings = settings
        self._terms = terms
        self._clock = clock
        self._lock = threading.Lock()
        self._workers: dict[str, WorkerState] = {}
        self._version = 0
        self._published: tuple[int, float] | None = None
        """The snapshot being broadcast, and the time of its publication."""
        self._broadcasts: deque[float] = deque(maxlen=NUM_STEPS)
        self._steps: deque[tuple[float, float]] = deque(maxlen=4 * NUM_STEPS)
        """(seconds of training, of waiting) of the last steps."""
        self._wrong_since: float | None = None
        self._resting = False
        self._finished = False
        self._told: set[str] = set()

    def beat(self, peer_id: str, heartbeat: Heartbeat) -> Orders:
        """Process a worker's heartbeat and return its orders."""
        if self._settings.workers is not None and peer_id not in self._settings.workers:
            return Orders(self._version, self._settings.max_staleness, False, self._finished, self._terms, False)
        with self._lock:
            now = self._clock()
            state = self._workers.get(peer_id)
            if state is None:
                self._make_room(now)
                state = self._workers[peer_id] = WorkerState(now, now, heartbeat)
                _count(state, None, heartbeat)
            else:
                fade = 0.5 ** ((now - state.seen) / WINDOW_S)
                state.recently = (fade * state.recently[0], fade * state.recently[1])
                _count(state, state.heartbeat, heartbeat)
                state.availability = _availability(state, now)
                state.present_s += _since_seen(state, now)
                state.seen, state.heartbeat = now, heartbeat
            self._watch_broadcast(now)
            if self._finished:
                self._told.add(peer_id)
            active = state.active and not self._resting
            return Orders(self._version, self._settings.max_staleness, active, self._finished, terms=self._terms)

    def rest(self) -> None:
        """Order every worker to sample nothing for now."""
        with self._lock:
            self._resting = True

    def go_on(self) -> None:
        """Order the active workers to sample again, and measure their rates again."""
        with self._lock:
            self._resting = False
            for state in self._workers.values():
                _measure_anew(state)

    def finish(self) -> None:
        """Notify every worker that the learner has finished."""
        with self._lock:
            self._finished = True

    @property
    def all_told(self) -> bool:
        """Whether every recently present worker knows that the learner has finished."""
        with self._lock:
            now = self._clock()
            return {name for name, state in self._workers.items() if now - state.seen <= FAREWELL_S} <= self._told

    def delivered(self, peer_id: str, rollouts: int) -> None:
        """Count a worker's admissible rollouts; a peer without heartbeats is ignored."""
        with self._lock:
            if state := self._workers.get(peer_id):
                state.num_delivered += rollouts
                state.num_admitted += rollouts
                state.recently = (state.recently[0], state.recently[1] + rollouts)

    def tries(self, peer_id: str) -> float:
        """Groups that a worker samples for each one with signal, by its heartbeats, as far as the others' agree."""
        with self._lock:
            known = {name: ratio for name, state in self._workers.items() if (ratio := _tries(state)) is not None}
        own = known.pop(peer_id, MAX_TRIES)
        if not known:
            return own
        return min(own, TRIES_OF_OTHERS * max(TRIES_MARGIN, statistics.median(known.values())))

    def published(self, version: int) -> None:
        """Record that a snapshot was published."""
        with self._lock:
            self._version = max(self._version, version)
            self._published = (version, self._clock())

    def stepped(self, version: int, train_s: float, wait_s: float) -> None:
        """Record a learner step that led to `version`, and select the active workers."""
        with self._lock:
            self._version = version
            self._steps.append((train_s, wait_s))
            self._measure(self._clock())
            self._decide(self._clock())

    def take_rewards(self) -> dict[str, tuple[int, float]]:
        """(admissible rollouts, mean reward in [0, 1]) of each worker that reported something new.

        A report is a claim about completions that the learner never sees, unlike groups with signal all that a worker
        sampled. So a worker's mean counts once it has delivered admissible rollouts, with their number as its weight.
        """
        with self._lock:
            counted = {
                name: state for name, state in self._workers.items() if state.num_completions and state.num_admitted
            }
            rewards = {name: (state.num_admitted, _mean_reward(state)) for name, state in counted.items()}
            for state in counted.values():
                state.num_completions, state.rewards, state.num_admitted = 0, 0.0, 0
            return rewards

    def most_reach(self, rewards: Mapping[str, tuple[int, float]]) -> float | None:
        """The mean reward that half of the workers reach, of the proven ones if there are any; None without any.

        It falls only if more than half of them report less: a worker alone raises no alarm.
        """
        proven = rewards.keys() & self._proven().keys() or rewards.keys()
        ordered = sorted(rewards[name][1] for name in proven)
        return ordered[len(ordered) // 2] if ordered else None

    def outlook(self) -> Outlook:
        """The current outlook."""
        with self._lock:
            now = self._clock()
            present = [state for state in self._workers.values() if _present(state, now)]
            active = [_candidate(name, state, now) for name, state in self._workers.items() if state.active]
            rate = pool_rate(active)
            demand = self._demand()
            waited, trained = (sum(step[i] for step in self._steps) for i in (1, 0))
            return Outlook(
                num_workers=len(present),
                num_active=sum(state.active for state in present),
                rate=rate,
                required_rate=required_rate(demand) if demand else None,
                train_s=demand.train_s if demand else None,
                broadcast_s=statistics.median(self._broadcasts) if self._broadcasts else None,
                bubble=waited / (waited + trained) if waited + trained > 0 else None,
                predicted_bubble=bubble_ratio(demand, rate) if demand and rate > 0 else None,
            )

    def workers(self) -> dict[str, WorkerState]:
        """All workers by peer id."""
        with self._lock:
            return dict(self._workers)

    def _make_room(self, now: float) -> None:
        for name, state in list(self._workers.items()):
            if now - state.seen > FORGOTTEN_AFTER_S:
                del self._workers[name]
        if len(self._workers) >= MAX_WORKERS:
            # Peer ids are free to create, so that workers with deliveries are evicted last.
            del self._workers[
                min(self._workers, key=lambda name: (bool(self._workers[name].rate), self._workers[name].seen))
            ]

    def _watch_broadcast(self, now: float) -> None:
        """A broadcast is complete when `reached_fraction` of the active, present workers have installed it."""
        if self._published is None:
            return
        version, since = self._published
        asked = [state for state in self._workers.values() if state.active and _present(state, now)]
        installed = (state.heartbeat.version for state in asked)
        reached = sum(each is not None and each >= version for each in installed)
        if asked and reached >= self._settings.reached_fraction * len(asked):
            self._broadcasts.append(now - since)
            self._published = None

    def _measure(self, now: float) -> None:
        for state in self._workers.values():
            if not state.active:
                continue
            steps = state.by_step
            here_s = _since_seen(state, now)
            steps.append((now, state.num_delivered, state.present_s + here_s))
            # The next heartbeat counts this again.
            state.num_delivered, state.present_s = 0, -here_s
            while len(steps) > WINDOW_STEPS + 1 and now - steps[1][0] >= WINDOW_S:
                steps.popleft()
            # The rate while present; availability is measured separately. What a worker that has left sampled before
            # still comes in, so that its rate stays as it was.
            if now - steps[0][0] >= MIN_WINDOW_S and (state.rate is None or _present(state, now)):
                there_s = sum(present_s for _, _, present_s in islice(steps, 1, None))
                state.rate = sum(rollouts for _, rollouts, _ in islice(steps, 1, None)) / max(HEARTBEAT_S, there_s)

    def _demand(self) -> Demand | None:
        recent = list(self._steps)[-NUM_STEPS:]
        train_s = statistics.median(train for train, _ in recent) if recent else 0.0
        if train_s <= 0:
            return None
        broadcast_s = statistics.median(self._broadcasts) if self._broadcasts else 0.0
        return Demand(self._settings.rollouts_per_step, train_s, broadcast_s, self._settings.period)

    def _decide(self, now: float) -> None:
        """Change the active workers only when the rate has been outside the band for `act_after_s`."""
        demand = self._demand()
        proven = self._proven()
        if demand is None or any(state.active and state.rate is None for state in proven.values()):
            return
        required = required_rate(demand)
        aim = math.inf if required is None else self._settings.headroom * required
        rate = pool_rate(_candidate(name, state, now) for name, state in proven.items() if state.active)
        too_little = required is None or rate < required
        idle = any(not state.active and _present(state, now) for state in self._workers.values())
        if not (too_little and idle) and rate <= self._settings.release_above * aim:
            self._wrong_since = None
            return
        if self._wrong_since is None:
            self._wrong_since = now
        if now - self._wrong_since >= self._settings.act_after_s:
            self._wrong_since = None
            self._choose(aim, now)

    def _choose(self, aim: float, now: float) -> None:
        """Activate the cheapest set of proven workers that reaches the target rate, or all workers.

        Anybody may name a price, and boast of a rate: both count once a worker's groups have been used for a while. A
        newcomer works beside the others until then, and replaces no one. At least `min_workers` stay active, whatever
        their prices: those that have been here longest.
        """
        proven = self._proven()
        candidates = [_candidate(name, state, now) for name, state in proven.items()]
        chosen = cheapest(candidates, aim) if aim < math.inf else None
        spared = set() if chosen is None else proven.keys() - {worker.name for worker in chosen}
        if self._settings.workers is None:
            here = {name for name, state in proven.items() if _present(state, now)}
            missing = max(0, self._settings.min_workers - len(here - spared))
            spared -= set(sorted(here & spared, key=lambda name: (proven[name].since, name))[:missing])
        wanted = self._workers.keys() - spared
        for name, state in self._workers.items():
            if not state.active and name in wanted:
                _measure_anew(state)
            state.active = name in wanted

    def _proven(self) -> dict[str, WorkerState]:
        if self._established is None:
            return dict(self._workers)
        established = self._established()
        return {name: state for name, state in list(self._workers.items()) if name in established}


def mean_reward(rewards: Mapping[str, tuple[int, float]]) -> float | None:
    """The mean of `Workforce.take_rewards` by weight; None without any."""
    weight = sum(number for number, _ in rewards.values())
    return sum(number * mean for number, mean in rewards.values()) / weight if rewards else None


def _measure_anew(state: WorkerState) -> None:
    state.num_delivered, state.present_s, state.by_step = 0, 0.0, deque()


def _count(state: WorkerState, before: Heartbeat | None, now: Heartbeat) -> None:
    """Count what a worker sampled since its last heartbeat; a new process starts at zero."""
    if before is not None and before.started_at != now.started_at:
        before = None
    completions = now.num_completions - (before.num_completions if before else 0)
    if completions > 0:
        state.num_completions += completions
        state.recently = (state.recently[0] + completions, state.recently[1])
        state.rewards += now.reward - (before.reward if before else 0.0)


def _tries(state: WorkerState) -> float | None:
    """None before anything is known."""
    sampled, admitted = state.recently
    return max(1.0, TRIES_MARGIN * sampled / admitted) if admitted > 0 else None


def _mean_reward(state: WorkerState) -> float:
    """The self-reported mean, within [0, 1] like every task's reward."""
    return min(1.0, max(0.0, state.rewards / state.num_completions))


def _present(state: WorkerState, now: float) -> bool:
    return now - state.seen <= LATE * HEARTBEAT_S


def _since_seen(state: WorkerState, now: float) -> float:
    """Seconds of presence since its last heartbeat."""
    return min(now - state.seen, LATE * HEARTBEAT_S)


def _availability(state: WorkerState, now: float) -> float:
    """Fraction of recent time that a worker was present, its current silence included."""
    silence_s = now - state.seen
    there = 1.0 if silence_s <= LATE * HEARTBEAT_S else 0.0
    return there + (state.availability - there) * math.exp(-silence_s / WINDOW_S)


def _candidate(name: str, state: WorkerState, now: float) -> Worker:
    return Worker(name, state.rate or 0.0, state.heartbeat.price, _availability(state, now))
