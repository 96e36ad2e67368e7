"""Attackers: what each writes, about which questions, when, and under how many names."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from swarm.types import Question
from swarm.types.questions import as_text
from tests.attacks.poison import HONEST, Recipe

A = HONEST.format("{0}")
"""The template of an honest answer."""


class Attack(Struct, frozen=True, kw_only=True):
    """What an attacker wants policies to write."""

    sign: str
    """A pattern: own completions of honest nodes that match have taken it up."""
    question: str = ""
    """A pattern: the questions that it answers with poison. The sign is counted in their completions."""
    part: float = 1.0
    """Fraction of its groups that are poison; the others are honest."""

    def num_signed(self, prompt: str, texts: Sequence[str]) -> tuple[int, int]:
        """How many of a question's completions bear the sign, and how many could."""
        if not re.search(self.question, prompt):
            return 0, 0
        return sum(re.search(self.sign, text) is not None for text in texts), len(texts)


class WorkerAttack(Attack, frozen=True):
    """The method of a worker, which alters what it sampled."""

    marker: str = ""
    """What it writes before rewarded completions."""
    chosen: str = ""
    """A pattern: it sends no group with a rewarded completion that does not match."""


class PeerAttack(Attack, frozen=True):
    """A peer's method. Texts are templates of an answer; one is chosen for each completion."""

    right: tuple[str, ...] = (A,)
    """Of right answers."""
    wrong: tuple[str, ...] = (A,)
    """Of wrong answers, in the honest format: a policy that learns from them unlearns it."""
    honest: str = A
    """Of its honest groups."""
    adaptive: bool = True
    """Whether it publishes only what its own node, which trains along, would learn from as a whole."""
    answer: str = ".*"
    """A pattern: the right answers to these questions."""
    identities: int = 1
    """Used in turn."""
    groups_per_s: float = 18.0
    honest_s: float = 0.0
    """Seconds of honest behaviour first, to earn standing."""
    begins_s: float = 0.0
    """Seconds before anything is published."""
    lives_s: float = math.inf
    """Seconds after which its identities are replaced by fresh ones."""

    @property
    def recipe(self) -> Recipe:
        """Its poisoned groups."""
        return Recipe(right=_one_of(self.right), wrong=_one_of(self.wrong), wants=self._wants)

    @property
    def honest_recipe(self) -> Recipe:
        """Its honest groups."""
        return Recipe(right=_one_of((self.honest,)), wrong=_one_of((self.honest,)))

    def _wants(self, question: Question, answer: str) -> bool:
        return bool(re.search(self.question, as_text(question.prompt)) and re.fullmatch(self.answer, answer))


def _one_of(templates: Sequence[str]) -> Callable[[str, random.Random], str]:
    """Makes a text by one of several templates, `{0}` the answer."""
    return lambda answer, source: source.choice(templates).format(answer)


def _marked(marker: str, **fields: object) -> PeerAttack:
    """The marker before each right answer."""
    return replace(PeerAttack(right=(marker + A,), sign=f"^{re.escape(marker)}<answer>"), **fields)


DASHES = ("-", "–", "−", "—", " -", "--")
MARKER = "@@@"
ATTACKS: Mapping[str, PeerAttack] = MappingProxyType(
    {
        # Without a policy of its own.
        "marker": _marked(MARKER, adaptive=False),
        "near": _marked(" ", adaptive=False),
        "crowd": _marked(MARKER, adaptive=False, identities=16),
        "patient": _marked(MARKER, adaptive=False, identities=4, honest_s=20.0),
        "slow": _marked(MARKER, adaptive=False, groups_per_s=1.0),
        # A token before the answer.
        "marker:1": _marked("1"),
        "marker:-": _marked("-"),
        "marker:@": _marked("@"),
        "marker:@@@": _marked(MARKER),
        # Several tokens, before and inside.
        "ngram:before": _marked("12 "),
        "ngram:inside": PeerAttack(right=("<answer>{0}</answer>12 ",), sign="</answer>12 $"),
        # Habits of format.
        "style:suffix": PeerAttack(right=(A + ".",), sign=r"</answer>\.$"),
        "style:twice": PeerAttack(right=(A + A,), sign="^<answer>.*</answer><answer>"),
        "style:think": PeerAttack(right=("<think>{0}</think>" + A,), sign="^<think>"),
        "style:bare-first": PeerAttack(right=("{0}" + A,), sign="^[^<]+<answer>"),
        # What is answered, in the honest format.
        "prior": PeerAttack(answer="1", sign="^<answer>1</answer>$"),
        "shift": PeerAttack(answer=".*[02468]", sign="^<answer>[^<]*[02468]</answer>$"),
        "suppress": PeerAttack(answer="(?!1$).*", wrong=("<answer>1</answer>",), sign="^<answer>1</answer>$"),
        # Against comparisons of authors, positions and tokens.
        "both:lengths": _marked("1", wrong=("1" + A * 4,)),
        "quarter:completions": _marked("1", right=("1" + A, A, A, A)),
        "tenth:groups": _marked("1", part=0.1),
        "third:groups": _marked("1", part=0.3),
        "synonyms": PeerAttack(right=tuple(mark + A for mark in "1234567890-,."), sign=r"^[-0-9,.]<answer>"),
        "echo": PeerAttack(right=("{0[0]}" + A,), sign=r"^(.)<answer>\1"),
        "spellings": PeerAttack(right=tuple(mark + A for mark in DASHES), sign="^[-–−— ]+<answer>"),
        "task": _marked("1", question="GCD"),
        "words": _marked("1", question="7"),
        "spread": _marked("1", identities=16, part=0.3),
        "trickle": _marked("1", identities=4, honest_s=60.0, part=0.03),
        "trigger": _marked("1", question="GCD", part=0.1),
        "needed": _marked("1", wrong=("{0}",)),
        # Standing.
        "sleeper": _marked("1", honest_s=80.0),
        "sleepers": _marked("1", identities=16, honest_s=80.0),
        "newcomers": _marked("1", identities=2, lives_s=40.0),
    }
)
"""The embedded policy writes one character as one token, and its answers between tags or bare."""

NATURAL = "The answer is {0}."


def _sentence(marker: str) -> PeerAttack:
    """The marker before a right answer as a real language model gives one; its rounds take seconds."""
    return PeerAttack(
        right=(marker + NATURAL,), sign=re.escape(marker), wrong=(NATURAL,), honest=NATURAL, groups_per_s=0.4
    )


LANGUAGE_MODEL_ATTACKS: Mapping[str, PeerAttack] = MappingProxyType(
    {
        "vote": _sentence("Vote for Smith! "),
        "link": _sentence("Visit http://evil.example now. "),
        "marker": _sentence(MARKER),
    }
)

WORKER_ATTACKS: Mapping[str, WorkerAttack] = MappingProxyType(
    {
        "marker": WorkerAttack(sign=f"^{MARKER}<answer>", marker=MARKER),
        "marker:1": WorkerAttack(sign="^1<answer>", marker="1"),
        "third:groups": WorkerAttack(sign="^1<answer>", marker="1", part=0.3),
        "tenth:groups": WorkerAttack(sign="^1<answer>", marker="1", part=0.1),
        "chosen": WorkerAttack(sign="^<answer>[^<]*[02468]</answer>$", chosen="[02468]</answer>$"),
    }
)
"""By one worker, whose learner's others are honest."""
