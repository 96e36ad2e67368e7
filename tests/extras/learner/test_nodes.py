"""A learner and its workers in one process, on the memory transport: the real loops, engines and updates."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from nodes.boot.directory import CHECKPOINTS, IDENTITY_FILE
from nodes.boot.manifest import found_run
from nodes.roles import runtime
from nodes.roles.runtime import NodeParts
from swarm.config import NodeConfig, load_config
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import CheckpointError, ConfigError, Interrupted, TaskError
from swarm.extras.learner import workforce
from swarm.extras.learner.roles import learner, worker as worker_module
from swarm.extras.learner.roles.learner import LearnerNode
from swarm.extras.learner.roles.worker import WorkerNode
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.net.roster import read_progress
from swarm.policy.loading import load_policy
from swarm.policy.ranks import Ranks
from swarm.schedule import AskedPause, ask, withdraw
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE, RoundEvent
from swarm.telemetry.sinks import scalars
from swarm.training.checkpoint import CheckpointStore
from swarm.types import Completion, VersionSpan
from tests.extras.learner.test_fence import credit
from tests.net.records import until

pytestmark = pytest.mark.slow

PATIENCE_S = 300.0

VALUES = {
    "evaluation": {"num_questions": 0},
    "follow": {"questions": 6},
    "generation": {"group_size": 4},
    "checkpoint": {"every_rounds": 2},
}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a heartbeat may be late; nobody dies here unless a test says so."""
    monkeypatch.setattr(workforce, "LATE", PATIENCE_S / workforce.HEARTBEAT_S)
    monkeypatch.setattr(workforce, "FAREWELL_S", PATIENCE_S)
    monkeypatch.setattr(learner, "FAREWELL_S", PATIENCE_S)


class Run:
    """A hub with one learner's identity, and threads that work for it."""

    def __init__(self, out: Path, **learner: object) -> None:
        self.out = out
        self.finished = False
        self.hub = MemoryHub()
        self.network = MemoryTransport
        self.values = {**VALUES, "learner": {"rollouts_per_step": 16, "spot_check": 1.0, **learner}}
        (out / "learner").mkdir(parents=True)
        self.identity = Identity.load_or_create(out / "learner" / IDENTITY_FILE)
        self.run = found_run(self.config("learner"), self.identity)

    def config(self, name: str, **changes: object) -> NodeConfig:
        (self.out / name).mkdir(exist_ok=True)
        values = {**self.values, **changes, "name": name, "out": str(self.out / name)}
        return load_config(None, values).config

    def transport(self, peer_id: str) -> MemoryTransport:
        transport = self.network(self.hub, peer_id, self.run)
        transport.start()
        return transport

    @contextlib.contextmanager
    def learner(self, rounds: int, cancelled: Callable[[], bool] = lambda: False) -> Iterator[LearnerNode]:
        transport = self.transport(self.identity.peer_id)
        config = self.config("learner", rounds=rounds)
        node = LearnerNode(NodeParts(config, self.identity, transport, InlineVerifier(config.tasks), cancelled))
        yield node
        node.close()
        transport.close()

    def learn(self, rounds: int, workers: int = 0) -> list[RoundEvent]:
        """The learner's steps, of which the first waits until this many workers have reported."""
        with self.learner(rounds) as node:
            node.begin()
            until(lambda: node._workforce.outlook().num_workers >= workers, "the workers report", PATIENCE_S)
            while not node.done:
                node.step()
            node.end("done")
        self.finished = True
        return self.events("learner")

    @contextlib.contextmanager
    def workers(self, *names: str, make: type[WorkerNode] = WorkerNode) -> Iterator[list[WorkerNode]]:
        stop = threading.Event()
        nodes = [self._worker(name, stop, make) for name in names]  # models cannot be loaded by two threads at once
        threads = [threading.Thread(target=_work, args=(node, stop)) for node in nodes]
        for thread in threads:
            thread.start()
        try:
            yield nodes
            if self.finished:  # they end by themselves
                for thread in threads:
                    thread.join(PATIENCE_S)
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def _worker(self, name: str, stop: threading.Event, make: type[WorkerNode]) -> WorkerNode:
        identity = Identity.generate()
        config = self.config(name)
        transport, verifier = self.transport(identity.peer_id), InlineVerifier(config.tasks)
        return make(NodeParts(config, identity, transport, verifier, stop.is_set))

    def events(self, name: str) -> list[RoundEvent]:
        return PeerHistory.read(self.out / name / METRICS_FILE).series()


def _work(node: WorkerNode, stop: threading.Event) -> None:
    done = False
    with contextlib.suppress(Interrupted):
        node.begin()
        while not (done or stop.is_set()):
            node.step()
            done = node.done
    node.end("done" if done else "interrupted")


@pytest.mark.parametrize("max_staleness", [0, 3])
def test_workers_follow_and_nothing_too_old_is_learned_from(tmp_path: Path, max_staleness: int) -> None:
    run = Run(tmp_path, max_staleness=max_staleness)
    with run.workers("one", "two"):
        steps = run.learn(rounds=5, workers=2)
    assert [event.learning.version for event in steps] == [1, 2, 3, 4, 5]
    assert read_progress(tmp_path / "learner") is not None, "what the page shows of a snapshot's way"
    assert all(event.figures["sampling/lag_max"] <= max_staleness for event in steps)
    assert all(event.figures["train/num_sequences"] >= 16 for event in steps)
    assert all(event.figures["reward/std"] > 0 and event.figures["completions/mean_length"] > 0 for event in steps)
    assert scalars(steps[-1]).keys() > {"reward/mean", "reward/std", "completions/clipped_ratio", "loss"}, "every sink"
    groups = steps[-1].groups
    assert groups["used_external"] >= 20
    assert not {"wrong_logprobs", "wrong_version", "wrong_tokens"} & groups["dropped"].keys()
    assert steps[-1].learning.workers == 2
    assert steps[-1].counters["snapshots/published"] >= 1
    assert steps[-1].counters["snapshots/chunks_given"] >= 1
    held = steps[-1].pool + steps[-1].pending
    assert groups["received"] == groups["used_external"] + sum(groups["dropped"].values()) + held
    histories = [PeerHistory.read(tmp_path / name / METRICS_FILE) for name in ("one", "two")]
    assert all(history.phase == "done" for history in histories), "told that the learner has finished"
    # One may have sampled all of it before the other had its first snapshot.
    worked = [history.latest for history in histories if history.latest is not None]
    assert sum(event.groups["shared"] for event in worked) > 0
    assert worked and all(event.following.installed > 0 for event in worked)
    assert all(event.counters["snapshots/chunks_received"] >= 1 for event in worked)


class NarrowTransport(MemoryTransport):
    """One on which nobody takes what is published until the test says so."""

    taken = False
    num_published = 0

    def publish(self, record: bytes) -> None:
        self.num_published += 1
        super().publish(record)

    def has_room(self) -> bool:
        return self.taken or self.num_published < 2


def test_a_worker_whose_groups_nobody_takes_samples_no_more_says_so_once_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "NOTE_AFTER_S", 0.2)
    run = Run(tmp_path)
    run.network = NarrowTransport
    with run.learner(rounds=1) as learner, run.workers("one") as (worker,):
        network = worker._transport
        assert isinstance(network, NarrowTransport)

        def notes() -> list[str]:
            return [moment.text for moment in PeerHistory.read(tmp_path / "one" / METRICS_FILE).moments]

        learner.begin()
        until(lambda: any("outbox is full" in text for text in notes()), "it says so", PATIENCE_S)
        sampled, paused_s = worker.assignment.follower.groups.num_completions, worker.assignment.waited_s
        until(lambda: worker.assignment.waited_s > paused_s + 1, "a while", PATIENCE_S)
        assert worker.assignment.follower.groups.num_completions == sampled and network.num_published == 2
        network.taken = True
        until(lambda: network.num_published > 8, "it goes on", PATIENCE_S)
        until(lambda: any("room for groups again" in text for text in notes()), "and says so", PATIENCE_S)
    assert sum("outbox is full" in text for text in notes()) == 1
    assert run.events("one")[-1].following.paused_s > 1


def _history(run: Run, name: str) -> PeerHistory:
    return PeerHistory.read(run.out / name / METRICS_FILE)


def test_a_paused_learner_stops_waiting_and_its_workers_sample_no_more(tmp_path: Path) -> None:
    run = Run(tmp_path, rollouts_per_step=1_000_000)
    stop = threading.Event()
    with run.learner(rounds=1, cancelled=stop.is_set) as learner, run.workers("one") as (worker,):
        learner.begin()
        thread = threading.Thread(target=_work_on, args=(learner, stop))
        thread.start()
        until(lambda: _num_sampled(worker) > 0, "samples", PATIENCE_S)
        ask(run.out / "learner", AskedPause())
        until(lambda: _history(run, "learner").pause is not None, "a pause while rollouts are missing", PATIENCE_S)
        until(lambda: not worker.assignment.follower.wanted, "the worker's orders", PATIENCE_S)
        assert worker.assignment.heartbeats is not None, "only the learner pauses"
        waited_s = worker.assignment.waited_s
        until(lambda: worker.assignment.waited_s > waited_s, "the batch in work is finished", PATIENCE_S)
        sampled, waited_s = worker.assignment.follower.groups.num_completions, worker.assignment.waited_s
        until(lambda: worker.assignment.waited_s > waited_s + 0.2, "a while", PATIENCE_S)
        assert worker.assignment.follower.groups.num_completions == sampled
        withdraw(run.out / "learner")
        until(lambda: worker.assignment.follower.groups.num_completions > sampled, "samples after it", PATIENCE_S)
        stop.set()
        thread.join()


def _num_sampled(worker: WorkerNode) -> int:
    """Before the worker follows its learner there are none."""
    return worker.assignment.follower.groups.num_completions if worker._assignment is not None else 0


def _work_on(node: LearnerNode, stop: threading.Event) -> None:
    with contextlib.suppress(Interrupted):
        while not stop.is_set():
            node.step()


def test_the_learner_counts_on_others_while_a_worker_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    with run.learner(rounds=1) as learner, run.workers("one") as (worker,):
        learner.begin()
        until(lambda: _num_sampled(worker) > 0, "samples", PATIENCE_S)
        ask(run.out / "one", AskedPause())
        until(lambda: _history(run, "one").pause is not None, "a pause", PATIENCE_S)
        monkeypatch.setattr(workforce, "LATE", 0.1 / workforce.HEARTBEAT_S)
        until(lambda: learner._workforce.outlook().num_workers == 0, "no heartbeats", PATIENCE_S)
        sampled = worker.assignment.follower.groups.num_completions
        monkeypatch.setattr(workforce, "LATE", PATIENCE_S / workforce.HEARTBEAT_S)
        withdraw(run.out / "one")
        until(lambda: worker.assignment.follower.groups.num_completions > sampled, "samples after it", PATIENCE_S)


def test_a_worker_that_differs_is_told_what_and_so_is_its_learner(tmp_path: Path) -> None:
    run = Run(tmp_path)

    def told(name: str) -> list[str]:
        moments = PeerHistory.read(tmp_path / name / METRICS_FILE).moments
        return [moment.text for moment in moments if "temperature" in moment.text]

    with run.learner(rounds=1, cancelled=lambda: len(told("learner")) == 2) as node:
        run.values["generation"] = {"group_size": 4, "temperature": 0.5}
        with run.workers("one") as (worker,):
            node.begin()
            with pytest.raises(Interrupted):
                node.step()
            until(lambda: told("one"), "the worker is told", PATIENCE_S)
    line = "the learner samples with temperature 1.0, not 0.5: set --generation.temperature 1.0"
    assert told("one") == [f"the learner cannot use what this worker samples: {line}"]
    by_worker, by_reason = sorted(told("learner"), reverse=True)
    assert by_worker == f"worker {worker._runtime.peer_id} samples what this learner cannot use: {line}"
    assert "groups of others were dropped as other_sampling: they sample with another temperature" in by_reason


def test_a_worker_with_other_adapters_is_told_and_once_why_its_learner_s_snapshots_do_not_fit(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.values["policy"] = {"lora": {"rank": 4}}

    def told(name: str, text: str) -> list[str]:
        return [moment.text for moment in _history(run, name).moments if text in moment.text]

    with run.learner(rounds=1, cancelled=lambda: bool(told("learner", "adapters"))) as node:
        run.values["policy"] = {}
        with run.workers("one") as (worker,):
            node.begin()
            with pytest.raises(Interrupted):
                node.step()
            until(lambda: told("one", "cannot be installed"), "the worker says so", PATIENCE_S)
            node._updater.rise_to(1)
            node._learner.publish()
            until(
                lambda: worker.assignment.follower.snapshots.num_refused == 2,
                "the next does not fit either",
                PATIENCE_S,
            )
            waited_s = worker.assignment.waited_s
            until(lambda: worker.assignment.waited_s > waited_s + 0.2, "a few steps", PATIENCE_S)
    line = "the learner's adapters are rank 4, alpha 32, targets all, not none: set --policy.lora.rank"
    (by_worker,) = told("one", "adapters")
    assert by_worker.startswith(f"the learner cannot use what this worker samples: {line}")
    (by_learner,) = told("learner", "adapters")
    assert line in by_learner
    (refused,) = told("one", "cannot be installed")
    assert refused.startswith("the learner's version 0 cannot be installed: the new weights lack model.")


def test_a_worker_of_a_named_learner_waits_for_the_run_too(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.run = None
    run.values["follow"] = {"learner": run.identity.peer_id}
    with run.workers("one") as (worker,):
        until(lambda: any("knows the run" in m.text for m in _history(run, "one").moments), "it waits", PATIENCE_S)
        assert worker._assignment is None
    assert _history(run, "one").end.reason == "interrupted"


def test_a_last_evaluation_that_fails_costs_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise TaskError("workers cannot be started")

    monkeypatch.setattr(runtime, "evaluate", fail)
    run = Run(tmp_path)
    run.values["evaluation"] = {"num_questions": 8}
    with run.learner(rounds=1) as node, pytest.raises(TaskError):
        node.end("done")
    assert CheckpointStore(tmp_path / "learner" / CHECKPOINTS).newest() is not None
    history = PeerHistory.read(tmp_path / "learner" / METRICS_FILE)
    assert history.end is not None and history.end.reason == "error"


def test_a_learner_that_restarts_knows_what_its_workers_push(tmp_path: Path) -> None:
    run, workers = Run(tmp_path), (("a", False), ("b", False), ("marker", True))
    with run.learner(rounds=1) as learner:
        assert credit(*workers, known=learner._learner.corroboration)["marker"] < 0.02
        before = learner._learner.corroboration.dump()
        learner.end("interrupted")
    with run.learner(rounds=1) as learner:
        known = learner._learner.corroboration
        assert known.dump() == before, "with the same salt"
        after = credit(("marker", True), ("a", False), known=known, rounds=1)
    assert after["marker"] < 0.02, "its first group after the restart"
    assert after["a"] == 1


def test_evidence_about_workers_that_was_changed_ends_in_one_sentence(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.learner(rounds=1) as learner:
        known = learner._learner.corroboration
        credit(("a", False), ("b", False), known=known, rounds=1)
        bad = {name: replace(state, salt=-1) for name, state in known.dump().items()}
        known.dump = lambda: bad
        learner.end("interrupted")
    with pytest.raises(CheckpointError, match="no usable evidence about authors: the salt"), run.learner(rounds=1):
        pass


def test_several_processes_for_a_worker_are_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config, ranks = run.config("worker"), Ranks()
    ranks.size = 2
    transport = run.transport(run.identity.peer_id)
    with pytest.raises(ConfigError, match="got 2: start one for each GPU"):
        WorkerNode(NodeParts(config, run.identity, transport, InlineVerifier(config.tasks), ranks=ranks))
    transport.close()


class Liar(WorkerNode):
    """Claims that every token was twice as surprising as it was."""

    def begin(self) -> None:
        super().begin()
        _lie(self, lambda c: replace(c, logprobs=tuple(2 * logprob for logprob in c.logprobs)))


class Impostor(WorkerNode):
    """Says that a snapshot which was never published sampled its tokens."""

    def begin(self) -> None:
        super().begin()
        _lie(self, lambda c: replace(c, versions=(VersionSpan(1_000, len(c.token_ids)),)))


def _lie(node: WorkerNode, about: Callable[[Completion], Completion]) -> None:
    share = node._runtime.exchange.share
    node._runtime.exchange.share = lambda group: share(replace(group, completions=tuple(map(about, group.completions))))


def test_liars_are_counted_and_quarantined_and_the_honest_one_is_not(tmp_path: Path) -> None:
    run = Run(tmp_path, spot_check=0.2)
    with (
        run.workers("honest"),
        run.workers("liar", make=Liar),
        run.workers("impostor", make=Impostor),
        run.learner(rounds=1_000) as node,
    ):
        node.begin()
        book = node._runtime.exchange.book
        while len(book.quarantined()) < 2 and node._learner.round < 100:
            node.step()
        node.end("interrupted")
    dropped = node._learner.ledger.snapshot()["dropped"]
    assert dropped["wrong_logprobs"] >= 2 and dropped["wrong_version"] >= 2
    assert len(book.quarantined()) == 2
    honest = [stats for stats in book.stats().values() if stats.used]
    assert len(honest) >= 1 and not any(stats.dropped["wrong_logprobs"] for stats in honest if stats.used > 2)


def test_a_learner_that_died_comes_back_with_higher_versions_and_its_workers_go_on(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.workers("one", "two"):
        with run.learner(rounds=1_000) as node:
            node.begin()
            for _ in range(3):
                node.step()
            before = node._updater.version
        # It just goes: the newest checkpoint is of step 2, and what came since is lost.
        with run.learner(rounds=6) as again:
            assert again._checkpoints.resumed_from == 2
            assert again._learner.buffer.num_unused() >= 0
            again.begin()
            while not again.done:
                again.step()
            assert again._updater.num_updates == 6, "the learning rate goes by updates, not by versions"
            again.end("done")
        run.finished = True
    steps = run.events("learner")
    assert [event.round for event in steps] == [1, 2, 3, 4, 5, 6]
    versions = [event.learning.version for event in steps]
    assert versions == sorted(set(versions)), "no version twice, though steps were repeated"
    assert versions[2] > before, "the third step was made again, under a number of its own"
    assert all(event.figures["sampling/lag_max"] <= 3 for event in steps)
    groups = steps[-1].groups
    held = steps[-1].pool + steps[-1].pending
    assert groups["received"] == groups["used_external"] + sum(groups["dropped"].values()) + held
    for name in ("one", "two"):
        assert PeerHistory.read(tmp_path / name / METRICS_FILE).phase == "done"


def test_a_learner_whose_list_of_versions_is_lost_goes_on_above_the_snapshots_it_has(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.learner(rounds=1) as node:
        node.begin()
        until(lambda: node._snapshots.announced() == 0, "it is published", PATIENCE_S)
    (tmp_path / "learner" / learner.PUBLISHED_FILE).unlink()
    with run.learner(rounds=1) as again:
        again.begin()
        assert again._updater.version == 1
        until(lambda: again._snapshots.announced() == 1, "it is published", PATIENCE_S)


def test_a_learner_goes_back_to_good_weights_and_its_workers_go_on_with_them(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.values |= {"watch": {"window_rounds": 2}, "checkpoint": {"every_rounds": 1, "keep": 1}}
    with run.workers("one", "two") as (worker, _), run.learner(rounds=1_000) as node:
        node.begin()
        while node._checkpoints._store.good is None:
            node._workforce.take_rewards = lambda: {"worker": (8, 1.0)}
            node.step()
        good, version, policy = node._checkpoints._store.good, node._updater.version, node._policy
        with torch.no_grad():
            for parameter in policy.weights.values():
                parameter.mul_(0.5)
        for reward in (1.0,) * 4 + (0.1,) * 2:  # means over two steps
            node._look_back(["12D3poisoner"], reward)
        for name, weights in load_policy(node._config.policy, good / "model").weights.items():
            torch.testing.assert_close(policy.weights[name], weights, atol=0, rtol=0)
        assert node._updater.version == version + 1, "versions only rise"
        snapshots = worker.assignment.follower.snapshots
        until(lambda: (snapshots.version or 0) > version, "a worker has the new one", PATIENCE_S)
        node.step()
        node.end("interrupted")
        run.finished = False
    moments = PeerHistory.read(tmp_path / "learner" / METRICS_FILE).moments
    (told,) = [moment.text for moment in moments if "harmed this learner" in moment.text]
    assert "from 1.000 to 0.100" in told and good.name in told and "12D3poisoner" in told


def test_a_worker_that_is_not_listed_is_told_what_to_do_and_samples_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, workers=[Identity.generate().peer_id])
    with run.workers("one") as (worker,), run.learner(rounds=1) as node:
        node.begin()
        history = tmp_path / "one" / METRICS_FILE
        until(lambda: "added to its learner.workers" in history.read_text(), "the worker says so", PATIENCE_S)
        assert worker._runtime.peer_id in history.read_text()
        assert node._workforce.outlook().num_workers == 0 and worker._batches == 0
        node.end("interrupted")


class Complaining(WorkerNode):
    """Whose snapshots come broken from one relay."""

    def begin(self) -> None:
        super().begin()
        feed = self.assignment._feed
        complaints = feed.complaints
        feed.complaints = lambda: [*complaints(), ("relay", "corrupt_chunk")]


def test_who_hands_a_worker_broken_chunks_is_cut_off(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.workers("one", make=Complaining) as (node,):
        run.learn(rounds=2, workers=1)
    assert node._runtime.exchange.book.quarantined() == {"relay"}
    assert node._transport._banned == {"relay"}, "not in the books only"
