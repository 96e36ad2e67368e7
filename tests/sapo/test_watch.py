from __future__ import annotations

import msgspec
import numpy as np
import pytest

from swarm.sapo.watch import Alarm, RewardGuard, WatchSettings, WatchState

SETTINGS = WatchSettings(rest_rounds=50, return_rounds=100)
OTHERS = ("friend", "poisoner", "poisoner")


def _rewards(seed: int, means: np.ndarray, completions: int = 64, correlated: int = 8) -> np.ndarray:
    """Mean rewards of rounds of so many completions, those of a question alike."""
    rng = np.random.default_rng(seed)
    questions = completions // correlated
    skill = rng.beta(0.5 * means[:, None] / (1 - means[:, None]), 0.5, size=(len(means), questions))
    return rng.binomial(correlated, skill).mean(axis=1) / correlated


def _alarms(rewards: np.ndarray, authors: tuple[str, ...] = OTHERS) -> list[tuple[int, Alarm]]:
    watch = RewardGuard(SETTINGS)
    seen = [(k, watch.observe(float(reward), 4, authors)) for k, reward in enumerate(rewards)]
    return [(k, alarm) for k, alarm in seen if alarm is not None]


def test_a_fall_with_others_in_the_updates_is_an_alarm() -> None:
    means = np.concatenate([np.linspace(0.1, 0.3, 100), np.full(100, 0.3), np.full(100, 0.02)])
    (when, alarm), *more = _alarms(_rewards(0, means))
    assert 200 < when < 280 and more == []
    assert alarm.before > 0.25 and alarm.after < 0.7 * alarm.before
    assert alarm.senders == ("poisoner", "friend"), "who gave most first"


def test_a_fall_is_charged_to_those_whose_part_grew_before_it() -> None:
    watch = RewardGuard(SETTINGS)
    honest = ("friend", "other")
    for _ in range(100):
        assert watch.observe(0.5, 4, honest) is None
    for _ in range(100):
        if alarm := watch.observe(0.0, 4, (*honest, "poisoner")):
            break
    assert alarm is not None and alarm.senders == ("poisoner",)


def test_alone_nobody_else_is_to_blame() -> None:
    means = np.concatenate([np.full(200, 0.3), np.full(100, 0.02)])
    assert _alarms(_rewards(0, means), authors=()) == []


@pytest.mark.parametrize("mean", [0.03, 0.1, 0.3, 0.8])
def test_noise_is_no_alarm(mean: float) -> None:
    for seed in range(10):
        assert _alarms(_rewards(seed, np.full(1_000, mean))) == []


def test_rewards_that_rise_or_slowly_vary_are_no_alarm() -> None:
    time = np.arange(1_000)
    for seed in range(10):
        assert _alarms(_rewards(seed, 0.25 + 0.1 * np.tanh(time / 200 - 1) + 0.02 * np.sin(time / 50))) == []


def _after_alarm(settings: WatchSettings = SETTINGS) -> RewardGuard:
    watch = RewardGuard(settings)
    for _ in range(100):
        watch.observe(0.5, 4, OTHERS)
    assert watch.share == 1.0 and watch.well
    _fall(watch)
    return watch


def _fall(watch: RewardGuard) -> Alarm:
    for _ in range(100):
        if alarm := watch.observe(0.0, 4, OTHERS):
            return alarm
    raise AssertionError("no alarm")


def test_others_share_goes_to_nothing_and_comes_back_slowly() -> None:
    watch = _after_alarm()
    assert not watch.well
    shares = []
    for _ in range(200):
        shares.append(watch.share)
        watch.observe(0.5, 4, ())
    assert shares[:51] == [0.0] * 51
    assert shares[100] == pytest.approx(0.5) and shares[150:] == [1.0] * 50
    assert shares == sorted(shares)


def test_a_further_fall_means_a_longer_rest() -> None:
    watch = _after_alarm()
    rests = []
    for _ in range(5):
        for _ in range(50 * 8 + 60):
            watch.observe(0.5, 4, OTHERS if watch.share else ())
            if watch.share:
                break
        for _ in range(60):
            watch.observe(0.5, 4, OTHERS)
        rests.append(_fall(watch).rest_rounds)
    assert rests == [100, 200, 400, 400, 400]


def test_a_reward_that_does_not_come_back_is_no_alarm_for_ever() -> None:
    watch = _after_alarm()
    assert not any(watch.observe(0.05, 4, OTHERS if watch.share else ()) for _ in range(1_000))
    assert watch.share == 1.0 and watch.num_alarms == 1


def test_a_restart_ends_no_rest() -> None:
    watch = _after_alarm()
    for _ in range(10):
        watch.observe(0.5, 8, ())
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(watch.dump()), type=WatchState)
    resumed = RewardGuard(SETTINGS)
    resumed.restore(state)
    assert watch.share == resumed.share == 0.0
    for _ in range(200):
        assert watch.observe(0.5, 4, OTHERS) == resumed.observe(0.5, 4, OTHERS)
        assert (watch.share, watch.well) == (resumed.share, resumed.well)
    assert resumed.share == 1.0
    assert _fall(watch) == _fall(resumed), "and the next rest is as long"


def test_the_best_rounds_are_those_up_to_which_the_mean_was_never_higher() -> None:
    watch = RewardGuard(WatchSettings(window_rounds=2))
    found = []
    for reward in (0.1, 0.3, 0.2, 0.4, 0.2, 0.3, 0.5):
        watch.observe(reward, 4, ())
        found.append(watch.is_best)
    assert found == [False, True, True, True, False, False, True]
    later = RewardGuard(WatchSettings(window_rounds=2))
    later.restore(watch.dump())
    later.observe(0.1, 4, ())
    assert later.is_best, "what was best before a restart is gone"
