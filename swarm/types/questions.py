"""Questions, their references, and what an environment answers."""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from swarm.types.bounds import MAX_MESSAGES, Count, Name, complete
from swarm.types.media import Audio, Image, Media, Video


class ProceduralRef(Struct, frozen=True, omit_defaults=True, tag="procedural"):
    """A generated question: the library and the task's options reproduce it."""

    task: Name
    """Task name as the run's manifest lists it, e.g. `gcd`."""
    library: Name
    """Generator and version, e.g. `reasoning_gym==0.1.25`."""
    options_digest: Name
    """Digest of the task's canonical options."""
    seed: Count
    index: Count
    question_hash: Name
    """Digest of the question's text: another library version is harmless if the text is the same."""
    media: Name = ""
    """Digest of the content of its pictures, sounds and clips; empty without any."""


class DatasetRef(Struct, frozen=True, omit_defaults=True, tag="dataset"):
    """A row of a data set."""

    task: Name
    dataset: Name
    """Hub id, or `local` for files; `revision` determines the rows."""
    revision: Name
    """Hub revision, or the digest of the local files."""
    options_digest: Name
    row: Count
    question_hash: Name
    media: Name = ""
    """See `ProceduralRef`."""


class EpisodeRef(Struct, frozen=True, omit_defaults=True, tag="episode"):
    """The start of an episode: the same environment, reset from it, answers the same turns in the same way."""

    task: Name
    environment: Name
    """Kind of the environment."""
    options_digest: Name
    """Digest of the environment's canonical options, its limit of turns included."""
    seed: Count
    index: Count
    question_hash: Name
    """Digest of the first observation's text."""
    media: Name = ""
    """See `ProceduralRef`; here for the first observation."""


TaskRef = ProceduralRef | DatasetRef | EpisodeRef


def stream_seed(peer_id: str) -> int:
    """The default seed of a peer's stream of questions, derived from its id: peers ask different questions, and anybody
    can tell whose a question is."""
    return int.from_bytes(blake2b(peer_id.encode(), digest_size=7).digest(), "big")


class Text(Struct, frozen=True, omit_defaults=True, tag="text"):
    """A part of an observation that is text."""

    text: str
    tool: Name = ""
    """The tool whose result it is; empty for other text."""


class PendingCall(Struct, frozen=True, omit_defaults=True, tag="own_call"):
    """A call of a custom tool, in an observation that still lacks its result: a policy never sees it."""

    text: str
    """What the policy said to the tool."""
    tool: Name = ""


class ToolResult(Struct, frozen=True, omit_defaults=True, tag="told"):
    """The result of a non-replayable tool call."""

    text: str
    tool: Name = ""


class StepReward(Struct, frozen=True, tag="earned"):
    """What the turn before an observation adds to the return; no policy sees it."""

    reward: Annotated[float, Meta(ge=0, le=1)]


Part = Text | PendingCall | ToolResult | StepReward | Image | Audio | Video

Observation = tuple[Part, ...]
"""What an environment answers at once, in parts by type."""

Shown = Text | Image | Audio | Video
"""A part that a policy reads as it is."""


def shown(observation: Observation) -> tuple[Shown, ...]:
    """What a policy reads of an observation; neighbouring texts are one, on separate lines."""
    parts: list[Shown] = []
    for part in observation:
        if isinstance(part, Media):
            parts.append(part)
        elif not isinstance(part, StepReward):
            last = parts[-1] if parts else None
            if isinstance(last, Text):
                parts[-1] = Text(f"{last.text}\n{part.text}")
            else:
                parts.append(Text(part.text))
    return tuple(parts)


def observation_text(observation: Observation) -> str:
    """An observation for people, and for a policy that reads text only."""
    return "\n".join(part.text if isinstance(part, Text) else str(part) for part in shown(observation))


def earned(observation: Observation) -> float:
    """What the turn before an observation adds to the return."""
    return sum(part.reward for part in observation if isinstance(part, StepReward))


class Terminal(Struct, frozen=True):
    """The end of an episode."""

    reward: float
    """What the last turn adds to the return, in [0, 1]: all of it, unless earlier turns have `StepReward` some."""


Actions = str | tuple[str, ...]
"""What the policy said: the text of its only turn, or that of each turn."""


def by_turn(actions: Actions) -> tuple[str, ...]:
    """The text of each turn, at least one."""
    return (actions,) if isinstance(actions, str) else actions


class ToolSchema(Struct, frozen=True):
    """A tool as it is described to a policy."""

    name: Name
    description: str
    parameters: str
    """JSON schema of its arguments."""


class Tools(Struct, frozen=True):
    """What a policy may call before it answers."""

    schemas: tuple[ToolSchema, ...]
    """At least one, with different names."""
    request: str = ""
    """Says in words how to call, for a policy whose chat template has no tools; empty where the question does."""
    text_of: str = ""
    """The only argument of the only tool, a text, which a `<tool>` pair may give as it is; empty without one."""


class Message(Struct, frozen=True, omit_defaults=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str | tuple[Shown, ...]
    tools: Tools | None = None
    """What may be called after the message, if it is the last one of a prompt."""

    @property
    def parts(self) -> tuple[Shown, ...]:
        """The content as parts."""
        return (Text(self.content),) if isinstance(self.content, str) else self.content

    @property
    def text(self) -> str:
        """The content for people: other parts are named in their place."""
        return "\n".join(part.text if isinstance(part, Text) else str(part) for part in self.parts)


Prompt = str | Annotated[tuple[Message, ...], Meta(min_length=1, max_length=MAX_MESSAGES)]
"""A question as the policy is asked it: one text, or a conversation that ends with a message of the user."""


def as_text(prompt: Prompt) -> str:
    """A prompt without its roles: the contents of its messages, with empty lines between them."""
    return prompt if isinstance(prompt, str) else "\n\n".join(message.text for message in prompt)


def tools_of(prompt: Prompt) -> Tools | None:
    """What a policy may call before it answers a prompt."""
    return None if isinstance(prompt, str) else prompt[-1].tools


def with_tools(prompt: Prompt, tools: Tools) -> Prompt:
    """A prompt before whose answer tools may be called."""
    *before, last = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    return (*before, replace(last, tools=tools))


def in_words(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """A prompt whose last text says which tools there are, instead of carrying them."""
    *before, last = messages
    if last.tools is None:
        return messages
    request = f"\n{last.tools.request}" if last.tools.request else ""
    said = last.content + request if isinstance(last.content, str) else (*last.content, Text(request))
    return (*before, Message(last.role, said if request else last.content))


def media_of(prompt: Prompt) -> tuple[Media, ...]:
    """The pictures, sounds and clips of a prompt, in order."""
    if isinstance(prompt, str):
        return ()
    return tuple(part for message in prompt for part in message.parts if isinstance(part, Media))


def as_prompt(observation: Observation) -> Prompt:
    """An observation that begins an episode, as the policy is asked it."""
    parts = shown(observation)
    return (
        (Message("user", parts),) if any(isinstance(part, Media) for part in parts) else observation_text(observation)
    )


class Question(Struct, frozen=True):
    """A question as asked; the expected answer stays with the task source."""

    ref: TaskRef
    prompt: Prompt
    """The first observation's text, or a conversation."""
    max_turns: int = 1
    """Turns after which an episode is over."""


class Step(Struct, frozen=True):
    """A turn of the policy and what the environment answered."""

    token_ids: tuple[int, ...]
    observation: Observation
    forced: int | None = None
    """See `Completion`."""


class Past(Struct, frozen=True):
    """What the next turn of an episode continues, exactly: no turn's text is tokenized again."""

    prompt: Prompt
    steps: tuple[Step, ...]


Context = Prompt | Past
"""What a completion continues: a question, or an episode in progress."""


class NextTurn(Struct, frozen=True):
    """An episode that is ready for its next turn."""

    episode: int
    """Its name among all that one call of an engine answers."""
    number: int
    """Number of the turn, from 1."""
    context: Context


complete(globals())
