"""Episodes for an engine, with an environment that always answers the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swarm.protocols import RolloutEngine
from swarm.types import Completion, Context, NextTurn, Observation, Past, Prompt, Rejection, Sampling, Step, Text

PROMPTS = ("Guess!", "Guess a number, any number.")
SAMPLING = Sampling(max_new_tokens=10)
SHOWN = (Text("higher or lower"),)


class Play:
    """Episodes of so many turns each, two per prompt, whose environment always answers the same, sooner or later."""

    def __init__(
        self,
        num_turns: int,
        late: Callable[[Play, int], bool] = lambda play, episode: False,
        prompts: Sequence[Prompt] = PROMPTS,
        shown: Callable[[NextTurn], Observation] = lambda turn: SHOWN,
    ) -> None:
        """`late`: whether an episode's environment has not answered yet; `shown`: its answer to a turn."""
        self.num_episodes = 2 * len(prompts)
        self._shown = shown
        self.continuing = set(range(self.num_episodes)) if num_turns > 1 else set()
        self.answered: list[tuple[NextTurn, Completion]] = []
        self.refused: set[int] = set()
        self._num_turns = num_turns
        self._late = late
        self._ready = [NextTurn(k, 1, prompts[k // 2]) for k in range(self.num_episodes)]
        self._asked: dict[int, NextTurn] = {}

    def next_turns(self, wait: bool) -> Sequence[NextTurn]:
        now = [turn for turn in self._ready if not self._late(self, turn.episode)] or (self._ready if wait else [])
        self._ready = [turn for turn in self._ready if turn not in now]
        self._asked |= {turn.episode: turn for turn in now}
        self.continuing -= {turn.episode for turn in now if turn.number == self._num_turns}
        return now

    def run(self, engine: RolloutEngine, seed: int = 3) -> list[tuple[NextTurn, Completion]]:
        """All turns with what was said, by episode and number."""
        for episode, answers in engine.stream((), 1, SAMPLING, seed, self):
            if isinstance(answers, Rejection):
                self.refused.add(episode)
                self.continuing.discard(episode)
                continue
            turn, (said,) = self._asked[episode], answers
            self.answered.append((turn, said))
            if turn.number < self._num_turns:
                self._ready.append(NextTurn(episode, turn.number + 1, after(turn.context, said, self._shown(turn))))
        return sorted(self.answered, key=lambda pair: (pair[0].episode, pair[0].number))


def after(context: Context, said: Completion, shown: Observation = SHOWN) -> Past:
    past = context if isinstance(context, Past) else Past(context, ())
    return Past(past.prompt, (*past.steps, Step(said.token_ids, shown)))
