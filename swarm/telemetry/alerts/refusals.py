"""Says so when others' groups are dropped because this node and they do not agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from swarm.reasons import Reason

FIRST = 32
"""Groups dropped for one reason before it is said; then ten times as many, and so on."""

_OWN_TASKS = "take the run's tasks (remove `tasks` from the configuration), or make sure that all members list the same"
REMEDIES: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.UNKNOWN_TASK: f"their tasks are not among this node's: {_OWN_TASKS}",
        Reason.OPTIONS_DIFFER: f"their tasks have other options, rules or rewards here: {_OWN_TASKS}",
        Reason.OTHER_TASK: "their tasks run other code here: get the same version of it",
        Reason.QUESTION_MISMATCH: "this node gets other questions for their references: get the same versions of the "
        "libraries and of the data sets (`revision`)",
        Reason.MEDIA_MISMATCH: "their pictures, sounds or clips have another content here: get the same files",
        Reason.EPISODE_MISMATCH: "their episodes go otherwise here: get the same version of the environment",
        Reason.TOO_MANY: "they have more completions than this node's run allows: it may have been begun again with "
        "another generation.group_size; restart the nodes that joined before",
        Reason.UNTRUSTED: "only their author has the tool that they used: list its peer id in `trusted` to believe it",
        Reason.NOT_INVITED: "their workers are not among `learner.workers`: add a worker's peer id to take its groups",
        Reason.OTHER_POLICY: "their tokenizer is another: workers must set the learner's policy.model",
        Reason.OTHER_SAMPLING: "they sample with another temperature: workers must set the learner's "
        "generation.temperature",
        Reason.NO_TOKENS: "they have no token ids: a learner's groups come from `swarm work`, not from `swarm join`",
        Reason.WRONG_LOGPROBS: "their log-probabilities are not those of the snapshots: workers must set the learner's "
        "policy.system_prompt, dtype and chat template",
    }
)
"""What helps against each reason that a difference of configurations explains."""


class RefusalWatch:
    """Looks at the counts of dropped groups."""

    def __init__(self) -> None:
        """Nothing said yet."""
        self._next = dict.fromkeys(REMEDIES, FIRST)

    def look(self, dropped: Mapping[str, int]) -> Iterator[str]:
        """A line for each reason whose count has reached the next step."""
        for reason, remedy in REMEDIES.items():
            count = dropped.get(reason, 0)
            if count < self._next[reason]:
                continue
            while self._next[reason] <= count:
                self._next[reason] *= 10
            yield f"{count} groups of others were dropped as {reason}: {remedy}"
