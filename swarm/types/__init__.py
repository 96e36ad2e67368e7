"""The records that travel between the parts of a node and between nodes.

All are frozen msgspec structs: the definition is also the wire schema, and decoding refuses numbers and names out of
range. Unknown fields are ignored: a later version may send more of them, with defaults for nodes that do not. A
question travels *by reference*; a receiver regenerates what it needs to grade it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from math import inf
from sys import getsizeof
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, msgpack

from swarm.reasons import Reason
from swarm.types.media import Audio, Image, Media, Video


def complete(module: Mapping[str, object]) -> None:
    """Have msgspec describe the records of a module, which calls this at its end with `globals()`.

    Otherwise msgspec does so when a record is first decoded. Another thread that decodes one of the same type meanwhile
    reads a description that is not filled in yet: the process dies with a segmentation fault.
    """
    for each in list(module.values()):
        if isinstance(each, type) and issubclass(each, Struct) and each.__module__ == module["__name__"]:
            msgpack.Decoder(each)


SCHEMA_VERSION = 2
"""The major version: nodes with different ones do not understand each other. What may be added without raising it is
in `docs/protocol.md`, "How it grows"."""

MAX_INTEGER = 2**63 - 1
MAX_NAME_CHARS = 256
MAX_STOPS = 64
MAX_TEMPERATURE = 1e6
MAX_COMPLETIONS = 256
MAX_TURNS = 64
"""The policy's turns in one completion."""
MAX_MESSAGES = 64
"""Of a conversation that a question continues."""
MAX_RESULT_CHARS = 8_192
"""Of what a tool says in answer to a call."""
MAX_TRUSTED = 64
"""Peers whose tools a run believes."""
ANSWER: Final = "answer"
"""Among a task's named rewards, the one that the task itself gives."""
ELEMENT_BYTES = 40
"""Memory of one list item and its slot."""

# msgspec checks these bounds when it decodes a record, and only then; NaN fails every bound.
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Positive = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
LogProb = Annotated[float, Meta(ge=-1e4, le=0)]
"""No sampler draws a less likely token; sums and squares over a whole group stay finite."""
RecordId = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""A BLAKE3 digest."""
Seconds = Annotated[float, Meta(ge=-1e11, le=1e11)]
"""Since 1970 or any other origin."""
Reward = Annotated[float, Meta(ge=-1e9, le=1e9)]
Fraction = Annotated[float, Meta(ge=0, le=1)]

HELD_OUT_STREAMS = 2**62
"""Question streams with this seed or above are for evaluation: no node trains on them."""


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
    """As in `ProceduralRef`."""


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
    """As in `ProceduralRef`, of the first observation."""


TaskRef = ProceduralRef | DatasetRef | EpisodeRef


class Text(Struct, frozen=True, tag="text"):
    """A part of an observation that is text."""

    text: str


class OwnCall(Struct, frozen=True, tag="own_call"):
    """A part of an observation that a tool of this node alone gives, in place of this call: a policy never sees it."""

    text: str
    """What the policy said to the tool."""


class Told(Struct, frozen=True, tag="told"):
    """A part of an observation that is a tool's answer to such a call: nobody else can have it from the tool."""

    text: str


class Earned(Struct, frozen=True, tag="earned"):
    """A part of an observation that no policy sees: what the turn before it adds to the return."""

    reward: Annotated[float, Meta(ge=0, le=1)]


Part = Text | OwnCall | Told | Earned | Image | Audio | Video

Observation = tuple[Part, ...]
"""What an environment answers at once, in parts by type."""

Shown = Text | Image | Audio | Video
"""A part that a policy reads as it is."""


def shown(observation: Observation) -> tuple[Shown, ...]:
    """What a policy reads of an observation; neighbouring texts are one, on lines of their own."""
    parts: list[Shown] = []
    for part in observation:
        if isinstance(part, Media):
            parts.append(part)
        elif not isinstance(part, Earned):
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
    return sum(part.reward for part in observation if isinstance(part, Earned))


class End(Struct, frozen=True):
    """The end of an episode."""

    reward: float
    """What the last turn adds to the return, in [0, 1]: all of it, unless earlier turns have `Earned` some."""


Actions = str | tuple[str, ...]
"""What the policy said: the text of its only turn, or that of each turn."""


def by_turn(actions: Actions) -> tuple[str, ...]:
    """The text of each turn, at least one."""
    return (actions,) if isinstance(actions, str) else actions


class Message(Struct, frozen=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str | tuple[Shown, ...]

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


class Sampling(Struct, frozen=True, omit_defaults=True):
    """How completions were sampled. The wire carries only values that differ from the defaults."""

    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] = 1.0
    top_p: Fraction = 1.0
    """Keep the most likely tokens whose probabilities sum to this; 1: all."""
    max_new_tokens: Count = 256
    top_k: Count = 0
    """Keep the k most likely tokens; 0: all."""
    min_p: Fraction = 0.0
    """Keep tokens whose probability is at least this fraction of the most likely token's; 0: all."""
    stop: Annotated[tuple[Name, ...], Meta(max_length=MAX_STOPS)] = ()
    """Texts that end a completion and remain in it."""
    stop_tokens: Annotated[tuple[Name, ...], Meta(max_length=MAX_STOPS)] = ()
    """Names of tokens that end a completion, besides the policy's own end tokens."""

    @property
    def is_filtered(self) -> bool:
        """Whether tokens are drawn from less than the whole distribution."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @property
    def distribution(self) -> tuple[float, float, int, float]:
        """All that decides from which distribution a token is drawn."""
        return self.temperature, self.top_p, self.top_k, self.min_p


class VersionSpan(Struct, frozen=True):
    """Adjacent tokens of a completion that the same policy version sampled."""

    version: Count
    num_tokens: Positive


FinishReason = Literal["stop", "stop_sequence", "length"]
"""`stop`: the policy's own end token; `stop_sequence`: a stop text or token of `Sampling`; `length`: cut off."""


class Turn(Struct, frozen=True):
    """The part of a completion's text and tokens that belongs to one of the policy's turns."""

    num_chars: Count
    num_tokens: Count
    """0 without token ids."""
    finish_reason: FinishReason


class Completion(Struct, frozen=True, omit_defaults=True):
    """One answer, the same from every engine and on the wire: all that the policy said in an episode, and nothing else.

    The swarm shares `text`; ids and log-probabilities serve peers with the same tokenizer. Texts and tokens of several
    turns follow each other; what the environment answered is computed anew by whoever needs it.
    """

    text: str
    finish_reason: FinishReason
    """Of the last turn."""
    token_ids: tuple[Count, ...] = ()
    logprobs: tuple[LogProb, ...] = ()
    """[T] log-probabilities of `token_ids` under the distribution they were sampled from."""
    versions: tuple[VersionSpan, ...] = ()
    """The policy version that sampled each of the T tokens, in order; weights may change within a completion."""
    routing: bytes = b""
    """The experts that routed the prompt and the completion except its last token, as `swarm/policy/routing.py` stores
    them; never shared."""
    turns: Annotated[tuple[Turn, ...], Meta(max_length=MAX_TURNS)] = ()
    """Empty: a single turn."""
    observed: Name = ""
    """Digest of the observations between the turns, as `swarm/groups/episodes.py` computes it; empty for a single
    turn."""
    told: Annotated[tuple[Annotated[str, Meta(max_length=MAX_RESULT_CHARS)], ...], Meta(max_length=MAX_TURNS)] = ()
    """Marks an episode that nobody can replay: the texts of its `Told` parts, in order. Empty in all others."""

    def by_turn(self) -> tuple[Completion, ...]:
        """Text, finish reason, ids and log-probabilities of each turn."""
        if not self.turns:
            return (self,)
        parts = []
        chars = tokens = 0
        for turn in self.turns:
            text = slice(chars, chars := chars + turn.num_chars)
            ids = slice(tokens, tokens := tokens + turn.num_tokens)
            parts.append(Completion(self.text[text], turn.finish_reason, self.token_ids[ids], self.logprobs[ids]))
        return tuple(parts)

    @property
    def actions(self) -> Actions:
        """What the environment is told."""
        return tuple(turn.text for turn in self.by_turn()) if self.turns else self.text


Speaker = Literal["policy", "environment"]


def dialogue(completion: Completion, observations: Sequence[Observation]) -> list[tuple[Speaker, str]]:
    """What was said in turns, by whom. What the environment answered to the last turn, if anything, nobody reads."""
    said: list[tuple[Speaker, str]] = [("policy", turn.text) for turn in completion.by_turn()]
    answers: list[tuple[Speaker, str]] = [
        ("environment", observation_text(shown)) for shown in observations[: len(said) - 1]
    ]
    return [each for pair in zip_longest(said, answers) for each in pair if each is not None]


class Sample(Struct, frozen=True):
    """A held-out question with a node's own answer, shortened, for people."""

    question: str
    completion: str
    correct: bool
    pictures: tuple[bytes, ...] = ()
    """Small PNGs of the question's first pictures and clips."""


class PolicyId(Struct, frozen=True):
    """The policy that sampled a group."""

    model: Name
    tokenizer_hash: Name
    version: Count
    """Number of updates applied when the group was sampled."""


class RolloutGroup(Struct, frozen=True):
    """One question with all G completions, as its sender signs it: an advantage needs every reward of its group."""

    run_id: Name
    """Empty until the group is shared."""
    peer_id: Name
    sequence: Count
    """Increases with every group that a peer publishes, also across restarts: starts at the milliseconds since 1970,
    then one more for each group."""
    created_at: Seconds
    """Unix seconds on the sender's clock."""
    policy: PolicyId
    sampling: Sampling
    question: TaskRef
    completions: Annotated[tuple[Completion, ...], Meta(max_length=MAX_COMPLETIONS)]
    """[G]"""
    rewards: Annotated[tuple[Reward, ...], Meta(max_length=MAX_COMPLETIONS)]
    """[G] the sender's rewards: telemetry only, a receiver never trains on them."""
    log_expectation: LogProb | None = None
    """GEPO's log of the sampler's expectation over all G completions, at most 0; None when unknown."""

    @property
    def num_chars(self) -> int:
        """Characters of all texts."""
        return sum(len(text) for completion in self.completions for text in (completion.text, *completion.told))

    @property
    def num_elements(self) -> int:
        """Token ids, log-probabilities, version spans and turns of all completions."""
        return sum(len(c.token_ids) + len(c.logprobs) + len(c.versions) + len(c.turns) for c in self.completions)

    @property
    def memory_bytes(self) -> int:
        """Approximate memory; one wide character widens its whole text."""
        texts = (text for c in self.completions for text in (c.text, *c.told))
        return sum(map(getsizeof, texts)) + ELEMENT_BYTES * self.num_elements


class VerifiedGroup(Struct, frozen=True):
    """A group from the network, signed by its author and found whole: made once, on arrival, and not opened again."""

    content_id: str
    """Digest of the group as its author encoded it: the same for all who receive it, whatever they know of it."""
    group: RolloutGroup
    record: bytes
    """As it came, with its signature: what is handed on."""

    @property
    def memory_bytes(self) -> int:
        """About what it takes in memory."""
        return len(self.record) + self.group.memory_bytes


class Offer(Struct, frozen=True, array_like=True):
    """What an author says of a group that others may fetch, in at most 160 bytes."""

    record_id: RecordId
    """Digest of the sealed record, by which it is fetched."""
    content_id: RecordId
    """Digest of the group, by which it is known."""
    num_bytes: Positive
    """Of the sealed record."""
    task: Annotated[str, Meta(max_length=64)]
    num_completions: Annotated[int, Meta(ge=1, le=MAX_COMPLETIONS)]
    mean_reward: Reward
    reward_std: Annotated[float, Meta(ge=0, le=1e9)]
    """Population standard deviation. Both are claims, like `RolloutGroup.rewards`."""
    policy: Annotated[bytes, Meta(min_length=8, max_length=8)]
    """Digest of the group's `PolicyId`."""
    life_s: Annotated[int, Meta(ge=1, le=3_600)]
    """Seconds for which the author keeps the record, from the offer on."""

    @property
    def rewards(self) -> tuple[float, ...]:
        """[G] rewards of this mean and, for an even G, of this deviation."""
        apart = self.reward_std, -self.reward_std
        paired = self.num_completions // 2 * 2
        return tuple(self.mean_reward + (apart[k % 2] if k < paired else 0.0) for k in range(self.num_completions))


class OfferedGroup(Struct, frozen=True):
    """A group that can be fetched."""

    peer_id: str
    """Its author."""
    offer: Offer


class OfferedGroups(Struct, frozen=True):
    """Offers from the network, signed by their author."""

    peer_id: str
    offers: tuple[Offer, ...]
    per_s: float = 0.0
    """Offers that the author makes each second at present, as it says; 0 if it does not say."""


class RefusedRecord(Struct, frozen=True):
    """A record that was refused on arrival, for whoever counts refusals. What was in it is not kept."""

    reason: Reason
    detail: str
    peer_id: str | None
    """Whom a good signature holds responsible."""


Arrival = VerifiedGroup | OfferedGroups | RefusedRecord
"""What a transport makes of a record."""


class GradedGroup(Struct, frozen=True):
    """A group with this node's own question text, observations and rewards: its sender's are never trained on."""

    group: RolloutGroup
    prompt: Prompt
    rewards: tuple[float, ...]
    """[G] from this node's verifier."""
    observations: tuple[tuple[Observation, ...], ...] = ()
    """[G] those between the turns of each completion, from this node's verifier; empty if all have a single turn."""
    parts: dict[str, tuple[float, ...]] = {}
    """[G] the named rewards whose weighted mean `rewards` is, for a task that has them."""

    def observed(self, index: int) -> tuple[Observation, ...]:
        """The observations between the turns of completion `index`."""
        return self.observations[index] if self.observations else ()

    def turn_rewards(self, index: int) -> list[float]:
        """What each turn of completion `index` adds to its reward."""
        num_turns = len(self.group.completions[index].by_turn())
        before = [earned(shown) for shown in self.observed(index)[: num_turns - 1]]
        return [*before, self.rewards[index] - sum(before)]


class Grade(Struct, frozen=True):
    """A verifier's result for one group: all that comes back from the process that read the texts."""

    prompt: Prompt
    rewards: tuple[float, ...]
    """[G] for an episode that is not over what its turns have earned, mostly 0."""
    seconds: float = 0.0
    """Time to regenerate the question and score its completions."""
    observations: tuple[tuple[Observation, ...], ...] = ()
    """[G] what the environment answered to each turn except one that ended its episode; empty if all ended with their
    first turn."""
    held_out: bool = False
    """Whether the question is for evaluation: no node trains on it."""
    parts: dict[str, tuple[float, ...]] = {}
    """[G] as in `GradedGroup`."""

    @property
    def answers(self) -> tuple[float, ...]:
        """[G] the rewards of the answers alone, for evaluations: without format, length and judge."""
        return self.parts.get(ANSWER, self.rewards)

    def observed(self, index: int) -> tuple[Observation, ...]:
        """The observations of episode `index`: as many as turns if it is not over, else one less."""
        return self.observations[index] if self.observations else ()


class Rejection(Struct, frozen=True):
    """Why a question was not answered or a group was not graded."""

    reason: Reason
    detail: str = ""
    seconds: float = 0.0
    """As in `Grade`."""


Answers = tuple[Completion, ...] | Rejection
"""An engine's result for one prompt: [G] completions, or why there are none."""


class TaskSpec(Struct, frozen=True):
    """A task as a manifest carries it: any peer can build the same source from it."""

    name: Name
    kind: Name
    weight: Annotated[float, Meta(ge=0, le=1e9)]
    settings: dict[str, object]
    """The task's configuration as plain JSON values, defaults left out."""


class Terms(Struct, frozen=True):
    """What a worker and its learner must agree on."""

    model: Name
    """The model's public name."""
    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)]
    top_p: Fraction
    top_k: Count
    min_p: Fraction
    system_prompt: Name
    """Its digest."""
    tokenizer_hash: Name = ""
    """Empty while no model is loaded, as in a manifest."""
    template: Name = ""
    """Digest of the chat template; likewise."""
    rounded: Name = ""
    """To what frozen weights beside adapters are rounded, `int8` or `nf4`; empty for neither."""
    processor: Name = ""
    """Digest of the settings of the model's processor; empty without one, and while no model is loaded."""


class RunManifest(Struct, frozen=True, omit_defaults=True):
    """The definition of a run: signed by its founder, served by every member."""

    run_id: str
    """`NAME-DIGEST` with the digest of `founder`: a run id names its owner, so that nobody else can claim it."""
    founder: str
    """Peer id of the key that signed it."""
    created_at: Seconds
    tasks: tuple[TaskSpec, ...]
    group_size: Positive
    local: Count
    external: Count
    max_record_bytes: Positive
    max_completion_chars: Positive
    terms: Terms | None = None
    """Of the learner that founded the run; None for a run without one."""
    trusted: Annotated[tuple[Name, ...], Meta(max_length=MAX_TRUSTED)] = ()
    """Peer ids whose episodes with tools of their own count in this run."""


class ChunkList(Struct, frozen=True):
    """How bytes are cut into chunks of one size; the last may be shorter."""

    num_bytes: Positive
    chunk_bytes: Positive
    chunk_ids: tuple[bytes, ...]
    """Digest of each chunk, 16 bytes."""

    def size(self, index: int) -> int:
        """Bytes of chunk `index`."""
        return min(self.chunk_bytes, self.num_bytes - index * self.chunk_bytes)


class SnapshotManifest(Struct, frozen=True):
    """A learner's weights at one version, signed by its key: any holder of chunks can prove their origin."""

    run_id: str
    learner: str
    """Peer id of the key that signed it."""
    version: Count
    digest: bytes
    """Digest of the whole, 32 bytes."""
    whole: ChunkList
    parent: Count | None = None
    """The version that `change` applies to."""
    change: ChunkList | None = None
    """The lossless delta from the parent; None when it is not smaller than the whole."""


class MemberSummary(Struct, frozen=True, omit_defaults=True):
    """How far a member says it is: its own claims, which nobody checks."""

    rounds: Count
    """Rounds, steps or batches."""
    given: Count = 0
    """Groups shared."""
    used: Count = 0
    """Groups of others that an update has used, each once."""
    correct: Count = 0
    asked: Count = 0
    """Held-out questions of its last evaluation; 0 without one. Whoever shows an accuracy computes its interval."""
    evaluated_at: Count = 0
    """Rounds trained before that evaluation."""
    weights: Count | None = None
    """Version of a learner's or worker's weights."""


class PeerRecord(Struct, frozen=True, omit_defaults=True):
    """A peer's short-lived DHT entry, signed by its key."""

    run_id: str
    peer_id: str
    multiaddrs: tuple[str, ...]
    model: str
    tasks: tuple[str, ...]
    role: str
    version: str
    expires_at: Seconds
    name: str = ""
    """What its user calls it; not unique, and no evidence of anything. Empty if it was not named."""
    pulls: bool = False
    """Whether it fetches groups that are offered to it; false for versions that know no offers."""
    summary: MemberSummary | None = None
    """Only of members that chose to tell."""


class NetworkStatus(Struct, frozen=True):
    """The current state of a node's network."""

    run_id: str | None
    connected: tuple[str, ...]
    """Peer ids of connected members of the run, bootstraps included."""
    alone_since: float | None
    """Unix time since when no peer has been connected; None while one is connected."""
    detail: str = ""
    """One line: the last attempt and its result."""
    split: str = ""
    """One line: which other protocol version most peers speak, and what to do; empty otherwise."""
    num_pulling: int = 0
    """How many of the connected members fetch groups that are offered to them."""
    num_described: int = 0
    """Of how many of them that is known."""
    offers_per_s: float = inf
    """How many groups each member may offer per second, so that links carry what all offer together."""


class UpdateReport(Struct, frozen=True):
    """The result of one policy update, in numbers only: it goes to whoever asked for the update."""

    figures: dict[str, float] = {}
    """Figures of the steps taken, by conventional name; see `swarm/figures.py`."""
    skipped: bool = False
    """True when no step was taken: the loss or gradient was not finite, or there was nothing to learn from."""


class Estimate(Struct, frozen=True):
    """A measured figure with its 95% interval."""

    value: float
    low: float
    high: float


class SwarmWorth(Struct, frozen=True):
    """What others' groups do for a node, as `swarm/sapo/worth.py` estimates it over its last measured rounds."""

    rounds: int
    """Rounds measured."""
    help: Estimate | None = None
    """Progress of its updates over that of updates on its own groups alone; None while unknown."""
    each: Estimate | None = None
    """Worth of an external group, in own groups."""
    senders: dict[str, Estimate] = {}
    """The same by the group's author, of those that are known well enough."""


class Heartbeat(Struct, frozen=True):
    """A worker's report to its learner; counts are cumulative since its process started."""

    started_at: Seconds
    """Unix seconds on the worker's clock: a new value means a new process, whose counts start at 0."""
    version: Count | None
    """The snapshot that it samples from; None before the first."""
    num_completions: Annotated[int, Meta(ge=0, le=2**53)]
    reward: Annotated[float, Meta(ge=-1e15, le=1e15)]
    """Sum of the rewards of these completions under its own verifier: telemetry only."""
    price: Annotated[float, Meta(ge=0, le=1e9)]
    """Cost per hour, in the run's currency."""
    terms: Terms | None = None
    """The worker's; None from versions that do not say."""


class Orders(Struct, frozen=True):
    """A learner's response to a worker's heartbeat."""

    version: Count
    """The learner's current version."""
    max_staleness: Count
    active: bool
    """Whether the learner wants this worker's rollouts now."""
    finished: bool = False
    """The learner has made all its steps; the worker can stop."""
    terms: Terms | None = None
    """The learner's; None from versions that do not say."""


complete(globals())
