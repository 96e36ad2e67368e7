"""A policy: a causal language model with its tokenizer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from swarm.errors import CheckpointError, PolicyError
from swarm.kinds import extra
from swarm.machine import threads_of_each
from swarm.policy.adapters import Adapters, is_adapter_directory
from swarm.policy.batching import Positions
from swarm.policy.cache import Progress
from swarm.policy.calling import Calling, in_tags
from swarm.policy.config import (
    EMBEDDED,
    MADE_HERE,
    SMOLLM2,
    TINY_SEES,
    PolicySettings,
    local_name,
    origin,
    prompt_of,
    read_chat_template,
    template_values,
)
from swarm.policy.devices import find_device, find_dtype
from swarm.policy.experts import Routers, cast_experts
from swarm.policy.media.features import freeze_encoder, joined
from swarm.policy.out_of_memory import needing_memory
from swarm.policy.ranks import Ranks
from swarm.policy.reading import foreign_files, has_encoder, outline, read_model, try_tokenizer
from swarm.policy.scoring import give_float32_logits
from swarm.policy.smollm import ensure_smollm2
from swarm.policy.thinking import Piece, Prompted, Thinking, named_marks
from swarm.policy.tiny import ensure_tiny
from swarm.policy.turns import AS_IT_IS, Conversations, TemplateUse
from swarm.types import Completion, Context, Message, Observation, Past, Prompt, Step, Tools
from swarm.types.calls import calls_in
from swarm.types.media import Modality
from swarm.types.thoughts import CLOSE, answer_of, parts_of

if TYPE_CHECKING:
    from swarm.policy.media.inputs import MediaInputs

UNBOUNDED_POSITIONS = 10**9
SMALLER = "`swarm doctor --model NAME` says what would fit"


class WeightGate:
    """Lets one thread change the weights between two decode steps of another, without waiting for its completions.

    Changes take precedence, because generation reacquires the lock at every step. Not reentrant.
    """

    def __init__(self) -> None:
        self.changes = 0
        """Number of changes so far; results computed at another count used other weights."""
        self._free = threading.Condition()
        self._taken = False
        self._changers = 0

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Hold the weights constant within the block."""
        with self._free:
            self._free.wait_for(lambda: not self._taken and not self._changers)
            self._taken = True
        try:
            yield
        finally:
            self._leave()

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Exclude readers within the block; keep it short."""
        with self._free:
            self._changers += 1
            try:
                self._free.wait_for(lambda: not self._taken)
            finally:
                self._changers -= 1
            self._taken = True
        try:
            yield
        finally:
            self.changes += 1
            self._leave()

    def __deepcopy__(self, memo: object) -> WeightGate:
        """A copied policy has its own weights and an unlocked gate."""
        return WeightGate()

    def _leave(self) -> None:
        with self._free:
            self._taken = False
            self._free.notify_all()


class Policy:
    """Model and tokenizer. Trained weights are float32; `dtype` is the type of the forward pass."""

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        system_prompt: str | None,
        dtype: torch.dtype = torch.float32,
        adapters: Adapters | None = None,
        ranks: Ranks | None = None,
        routing_replay: bool = False,
        media: MediaInputs | None = None,
        template: TemplateUse = AS_IT_IS,
    ) -> None:
        """`adapters` are those in `model`, if any; `ranks` are the processes that hold the model; `media` reads what is
        not text, if the model can.

        Raises `PolicyError` when model and tokenizer cannot work together.
        """
        if tokenizer.eos_token_id is None:
            raise PolicyError(f"the tokenizer of {name} has no end-of-sequence token; a completion could never end")
        if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
            raise PolicyError(
                f"the tokenizer of {name} has {len(tokenizer)} tokens, its model only "
                f"{model.get_input_embeddings().weight.shape[0]}: they do not match"
            )
        self.name = name
        self.origin = ""
        """Its identity before training, see `swarm.policy.config.origin`."""
        self.model = model.eval()  # dropout would make sampled and trained log-probabilities differ
        give_float32_logits(self.model)
        cast_experts(self.model)
        self.tokenizer = tokenizer
        self.system_prompt = system_prompt
        self.dtype = dtype
        self.version = 0
        """Updates applied to the weights."""
        self.gate = WeightGate()
        self.adapters = adapters
        self.ranks = ranks or Ranks()
        if routing_replay and self.ranks.size > 1:
            raise PolicyError("policy.routing_replay must be false with several processes")
        self.routers = Routers(model) if routing_replay else None
        """The routers, when their choices of experts are recorded and replayed."""
        self.tokenizer_hash = _tokenizer_hash(tokenizer)
        self.longest_token_chars = max(map(len, tokenizer.get_vocab()))
        """Upper bound on the characters that one token decodes to, except for those that a tokenizer drops."""
        self.stop_ids = _stop_ids(model, tokenizer)
        self.media = media
        """How images and sounds enter forward passes; None for a policy that reads text only."""
        self._conversations = Conversations(tokenizer, self.stop_ids, media.reader if media else None, template)
        self._unshown = frozenset(tokenizer.all_special_ids)
        self._num_tokens = len(tokenizer)
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return torch.device(self.model.device)

    @property
    def max_positions(self) -> int:
        """Longest sequence of prompt and completion, at most `original_positions`."""
        config = self.model.config.get_text_config()
        limit = int(getattr(config, "max_position_embeddings", None) or UNBOUNDED_POSITIONS)
        return min(limit, self.original_positions or limit)

    @property
    def original_positions(self) -> int | None:
        """The length up to which LongRoPE is that of short sequences; None for a model without it.

        A longer sequence changes the positions of its own earlier tokens and of all other rows of its batch: neither a
        cache nor a batch gives what one pass over each row gives. Source: arXiv:2402.13753.
        """
        parameters = getattr(self.model.config.get_text_config(), "rope_parameters", None) or {}
        kinds = [parameters, *(each for each in parameters.values() if isinstance(each, dict))]
        lengths = [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
        return int(min(lengths)) if lengths else None

    @property
    def positions(self) -> str:
        """`max_positions` in words."""
        return f"{self.max_positions} positions" + (" before those of LongRoPE" if self.original_positions else "")

    @property
    def base(self) -> str:
        """Digest of the weights beneath the adapters, equal for every `dtype`; empty without adapters, and in float16,
        whose rounding it would show."""
        return self.adapters.base if self.adapters is not None and self.dtype is not torch.float16 else ""

    @property
    def compute_dtype(self) -> torch.dtype:
        """Type of the matrix products in a forward pass."""
        return self.model.dtype if self.dtype is torch.float32 else self.dtype

    def compute(self) -> contextlib.AbstractContextManager[object]:
        """Context in which forward passes run in `dtype`."""
        if self.dtype is torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def encode(self, context: Context) -> list[int]:
        """Token ids of a question or of an episode in progress, whose past is not tokenized again.

        Raises `PolicyError` when the chat template cannot continue an episode.
        """
        if not isinstance(context, Past):
            return self.encode_prompt(context)
        return joined([self.encode_prompt(context.prompt), self.encode_steps(context.steps)])

    def encode_steps(self, steps: Sequence[Step]) -> list[int]:
        """Token ids of turns and what followed them. Raises `PolicyError` as above."""
        return joined(
            part
            for step in steps
            for part in (
                self.with_end_of_thought(step.token_ids, step.forced),
                self.encode_observation(step.observation, step.token_ids),
            )
        )

    @property
    def thinking(self) -> Thinking | None:
        """How it marks its thoughts; None if it does not."""
        return self._conversations.thinking

    @property
    def calling(self) -> Calling | None:
        """How it calls tools; None if it has no form for calls, so that words explain it."""
        return self._conversations.calling

    @property
    def end_of_thought(self) -> list[int]:
        """Token ids that an engine inserts to end a thought."""
        return self.thinking.end if self.thinking else list(self.tokenizer.encode(CLOSE, add_special_tokens=False))

    def with_end_of_thought(self, ids: Sequence[int], forced: int | None) -> Sequence[int]:
        """A turn's own tokens with those that were inserted; `forced` as in `Completion`."""
        return ids if forced is None else [*ids[:forced], *self.end_of_thought, *ids[forced:]]

    def encode_observation(self, observation: Observation, after: Sequence[int]) -> list[int]:
        """Token ids between a turn with the ids `after` and the next one, with the chat template's marks of turns.

        Raises `PolicyError` as above.
        """
        return self._conversations.observation(observation, after)

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of a question, with the tokenizer's chat template if it has one.

        The system prompt precedes it, unless a conversation begins with its own. A policy that reads text only gets
        images and sounds by name.
        """
        messages = (Message("user", prompt),) if isinstance(prompt, str) else prompt
        if self.system_prompt and messages[0].role != "system":
            messages = (Message("system", self.system_prompt), *messages)
        return self._conversations.prompt(messages)

    def check_template(self) -> None:
        """Raises `PolicyError` for a chat template that cannot render a question."""
        self._conversations.check()

    @property
    def modalities(self) -> frozenset[Modality]:
        """Modalities that it reads beside text."""
        return self.media.reader.modalities if self.media is not None else frozenset()

    @property
    def mrope_positions(self) -> Positions | None:
        """Positions [3, L] of a sequence's tokens (M-RoPE); None where they are counted."""
        return self.media.positions if self.media is not None and self.media.has_grid else None

    def inputs(self, ids: Tensor) -> dict[str, object]:
        """The model's inputs for ids [B, L]."""
        return {"input_ids": ids} if self.media is None else self.media.given(self.model, ids, self.gate.changes)

    def encode_completions(self, completions: Sequence[Completion], tools: Tools | None = None) -> list[list[int]]:
        """Token ids of other policies' completions under this tokenizer; `tools` are those of the question, whose calls
        are then written as this policy writes them.

        A call of the tokenizer takes longer than reading a short text, hence several at once. Text that spells a
        special token stays text: another peer's completion must not end a turn early. One that ended itself ends as
        this policy's turns do by its chat template, which may be another token than ends a text.
        """
        pieces = [self._pieces(each.text, each.forced is not None) for each in completions]
        if tools is not None:
            pieces = [self._with_calls(each.text, its, tools) for each, its in zip(completions, pieces, strict=True)]
        return [
            [*each, *self._end_of(completion.text, tools)] if completion.finish_reason == "stop" else each
            for each, completion in zip(self._tokens(pieces), completions, strict=True)
        ]

    def _with_calls(self, text: str, pieces: list[Piece], tools: Tools) -> list[Piece]:
        """The pieces of a text, with the calls after its thought in this policy's form."""
        *before, last = pieces
        answer = parts_of(text).answer
        if not isinstance(last, str) or not answer:
            return pieces
        thought = last[: len(last) - len(answer)] if last.endswith(answer) else ""
        answer = last[len(thought) :]
        called = [in_tags(answer, tools)] if self.calling is None else self.calling.pieces(answer, tools)
        if called and isinstance(called[0], str):  # neighbours may share a token
            called = [thought + called[0], *called[1:]]
        elif thought:
            called = [thought, *called]
        return [*before, *called]

    def _end_of(self, text: str, tools: Tools | None) -> list[int]:
        """What ends a turn: before results, some families have another token there."""
        if tools is not None and self.calling is not None and calls_in(answer_of(text)):
            return self._conversations.end_of_calls
        return [self._conversations.end]

    def _tokens(self, pieces: Sequence[Sequence[Piece]]) -> list[list[int]]:
        texts = [piece for each in pieces for piece in each if isinstance(piece, str)]
        with foreign_files(self.name, "tokenizer"):  # which may panic over a text
            encoded = iter(
                self.tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"] if texts else ()
            )
        return [
            [token for piece in each for token in (next(encoded) if isinstance(piece, str) else piece)]
            for each in pieces
        ]

    def forced_at(self, completion: Completion) -> int | None:
        """Token ids of `encode_completions` before the end of a thought that an engine inserted; None without one."""
        if completion.forced is None or (self.thinking is not None and self.thinking.prompted is Prompted.OFF):
            return None
        *begun, _ = self._pieces(completion.text, forced=True)
        return len(self._tokens([begun])[0])

    def _pieces(self, text: str, forced: bool) -> list[Piece]:
        if self.thinking is not None:
            return self.thinking.pieces(text, forced)
        return [*text.split(CLOSE, 1)] if forced else [text]

    def hides(self, ids: Sequence[int], forced: int | None = None) -> bool:
        """Whether a completion has tokens that its text does not show, apart from a final end token. `forced` as in
        `Completion`.

        A policy may sample a special token in the middle; the text then does not determine what was graded.
        """
        shown = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        if forced is not None:
            thought = self.thinking.spoken(shown[:forced]) if self.thinking is not None else [shown[:forced]]
            answer = shown[forced:]
        else:
            *thought, answer = self.thinking.spoken(shown) if self.thinking is not None else [shown]
            if self.thinking is not None and self.thinking.is_open(shown):
                thought, answer = [answer], []
        marks = self.calling.tokens if self.calling is not None else frozenset()
        return any(self._is_unshown(token) for part in thought for token in part) or any(
            self._is_unshown(token) and token not in marks for token in answer
        )

    def _is_unshown(self, token: int) -> bool:
        return token in self._unshown or token >= self._num_tokens

    def decode(self, ids: list[int]) -> str:
        """Text of ids, without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def said(self, ids: Sequence[int], forced: int | None = None) -> str:
        """The text of a turn, whose thought and calls have the common marks. `forced` as in `Completion`."""
        calling = self.calling
        show = self.decode if calling is None else partial(calling.shown, decode=self.decode)
        text = self.thinking.text(ids, forced, self.decode, show) if self.thinking is not None else show(list(ids))
        answer = parts_of(text).answer
        if calling is None or not answer:
            return text
        return text[: len(text) - len(answer)] + calling.common(answer)

    @property
    def trained(self) -> list[torch.nn.Parameter]:
        """The trained parameters: all, or the adapters'."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @property
    def weights(self) -> dict[str, Tensor]:
        """The parameters that a checkpoint holds, by name: all, tied ones once, or the adapters'."""
        named = dict(self.model.named_parameters())
        return {name: value for name, value in named.items() if value.requires_grad or not self.adapters}

    def save(self, directory: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write a directory that `from_pretrained` loads, or peft if there are adapters.

        `weights` replaces this process's own, which may be shards.
        """
        weights = self.weights if weights is None else weights
        if self.adapters:
            self.adapters.save(directory, weights)
            return
        if self.media is not None:
            self.media.reader.save(directory)
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        buffers = {name: value for name, value in self.model.state_dict().items() if name not in parameters}
        self.model.save_pretrained(directory, state_dict={**buffers, **weights})
        self.tokenizer.save_pretrained(directory)

    def merge(self) -> None:
        """Merge the adapters into the weights; afterwards the policy can only generate and be saved."""
        if self.adapters:
            self.model = self.adapters.merge()
            self.adapters = None


def sharing_cores(settings: PolicySettings, num_computing: int) -> PolicySettings:
    """Settings of each of so many processes that compute on the CPU at the same time."""
    if settings.threads or find_device(settings.device).type != "cpu":
        return settings
    return settings.model_copy(update={"threads": threads_of_each(num_computing, torch.get_num_threads())})


def load_policy(
    settings: PolicySettings,
    weights: Path | None = None,
    progress: Progress | None = None,
    ranks: Ranks | None = None,
    only_handed_over: bool = False,
) -> Policy:
    """Load the policy that `settings` names; with `only_handed_over`, for an engine that has its own copy on the
    device: on the CPU, and in the type of forward passes.

    Raises `PolicyError`, and `OutOfMemory` when the device is too small.
    """
    torch.set_num_threads(settings.threads or threads_of_each(1, torch.get_num_threads()))
    transformers_logging.disable_progress_bar()  # one bar per shard would hide our own
    lora = settings.lora.rank > 0
    if weights is not None and is_adapter_directory(weights) != lora:
        raise CheckpointError(
            f"{weights} holds {'all weights' if lora else 'adapters'}, but policy.lora.rank is {settings.lora.rank}; "
            "set it as it was, or choose another directory with --out"
        )
    device = find_device(settings.device)
    ranks = ranks or Ranks()
    if lora and ranks.size > 1 and settings.lora.quantized:
        raise PolicyError(
            "policy.lora.frozen_dtype must be compute or float32 with several processes, got "
            f"{settings.lora.frozen_dtype}"
        )
    model, tokenizer, dtype = ranks.in_turn(
        lambda: _read(settings, None if lora else weights, progress, device, rounded=only_handed_over)
    )
    adapters = Adapters(model, settings.lora) if lora else None
    if adapters and weights is not None:
        adapters.load(weights)
    with needing_memory(f"{settings.model} does not fit in the memory of {device}; {SMALLER}"):
        ranks.place(model, torch.device("cpu") if only_handed_over else device)
    with foreign_files(settings.model):
        policy = _policy(settings, model, tokenizer, dtype, adapters, ranks)
    return policy


def _policy(
    settings: PolicySettings,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
    adapters: Adapters | None,
    ranks: Ranks,
) -> Policy:
    """The parts together, whose chat template has rendered a question."""
    if settings.chat_template is not None:
        tokenizer.chat_template = read_chat_template(settings.chat_template)
    policy = Policy(
        name=local_name(settings.model),
        model=model,
        tokenizer=tokenizer,
        system_prompt=prompt_of(settings),
        dtype=dtype,
        adapters=adapters,
        ranks=ranks,
        routing_replay=settings.routing_replay,
        media=_media(settings, model, tokenizer, dtype, ranks),
        template=TemplateUse(template_values(settings), named_marks(settings.thinking_marks), settings.tool_calls),
    )
    policy.origin = origin(settings.model, settings.revision)
    policy.check_template()
    return policy


def _media(
    settings: PolicySettings,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
    ranks: Ranks,
) -> MediaInputs | None:
    """How the policy reads what is not text; None if it does not. Raises `PolicyError`."""
    if not has_encoder(model.config):
        return None
    revision = None if settings.model in MADE_HERE else settings.revision
    compute = model.dtype if dtype is torch.float32 else dtype
    from swarm.policy.media.inputs import check_reading, read_media
    from swarm.policy.media.processor import has_processor

    source = find_source(settings.model)
    if not has_processor(source, revision):
        return None
    media = read_media(source, revision, settings.trust_remote_code, model, tokenizer, compute)
    ranks.forward(lambda: check_reading(model, media))
    return media


def find_source(model: str, progress: Progress | None = None) -> str:
    """What transformers loads: a directory for a policy that is made here, made now if missing; else `model`.

    Raises `PolicyError`.
    """
    if model == SMOLLM2:
        return str(ensure_smollm2(progress))
    if model == TINY_SEES:
        return str(extra("pictures.sees").ensure_sees(progress))  # other nodes need not load LLaVA and Pillow
    return str(ensure_tiny(model, progress)) if model in EMBEDDED else model


def _read(
    settings: PolicySettings, weights: Path | None, progress: Progress | None, device: torch.device, rounded: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, torch.dtype]:
    """Model, on the CPU, tokenizer, and the type of forward passes; `rounded`: also the type of all weights."""
    made = settings.model in MADE_HERE
    source = str(weights) if weights is not None else find_source(settings.model, progress)
    revision = None if made or weights is not None else settings.revision
    if not made and weights is None:
        try_tokenizer(source, revision)
    dtype = find_dtype(
        settings.dtype, device, lambda: outline(source, revision, settings.trust_remote_code).num_parameters()
    )
    frozen = settings.lora.rank > 0 and settings.lora.frozen_dtype != "float32"
    stored = dtype if frozen or rounded else torch.float32
    model, tokenizer = read_model(source, revision, settings.trust_remote_code, stored)
    if has_encoder(model.config) and settings.encoder == "frozen":
        freeze_encoder(model)
    return model, tokenizer, dtype


def _tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of the text-to-id mapping: equal hashes mean that token ids can be shared."""
    vocabulary = sorted(tokenizer.get_vocab().items())
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = json.loads(backend.to_str()) if backend is not None else {}
    parts = [vocabulary, rules.get("pre_tokenizer"), rules.get("normalizer"), (rules.get("model") or {}).get("merges")]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def _stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokenizer's end token and those of the generation config: chat models end turns with a different token."""
    generation = getattr(model, "generation_config", None)
    extra = getattr(generation, "eos_token_id", None)
    ids = extra if isinstance(extra, list) else [extra]
    return frozenset({tokenizer.eos_token_id, *(i for i in ids if i is not None)})
