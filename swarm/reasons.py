"""Why something is refused, dropped or counted against a peer: keys of the ledger, metrics and peers' accounts.

A value never changes its meaning: it is written to disk and compared with values from other versions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class Subject(StrEnum):
    """The main subject of a reason; a reason that also applies to others says so."""

    RECORD = "record"
    """Anything signed: a group, a manifest, a peer record, an announcement, a directory entry."""
    SENDER = "sender"
    """A record refused because of its signer's account."""
    CONDUCT = "conduct"
    """A peer's conduct on the network; no group is dropped."""
    GROUP = "group"
    """A readable group of another peer."""
    FOLLOWED = "followed"
    """A group that claims to be sampled from this learner's snapshots."""
    OWN = "own"
    """One of this node's own questions that was not trained on."""


class Reason(StrEnum):
    """Each member is its key, with its `subject` and a `sentence` that explains it."""

    subject: Subject
    sentence: str

    def __new__(cls, key: str, subject: Subject, sentence: str) -> Reason:
        """The string `key` with its explanation."""
        reason = str.__new__(cls, key)
        reason._value_ = key
        reason.subject = subject
        reason.sentence = sentence
        return reason

    OVERSIZED = "oversized", Subject.RECORD, "It is larger than allowed, before or after decompression."
    MALFORMED = "malformed", Subject.RECORD, "It cannot be decoded, or its kind is not the expected one."
    SCHEMA_VERSION = (
        "schema_version",
        Subject.RECORD,
        "It is of another major version of the protocol than this node speaks: one of the two must be updated.",
    )
    WRONG_RUN = "wrong_run", Subject.RECORD, "It belongs to another run, or this node knows no run yet."
    BAD_SIGNATURE = "bad_signature", Subject.RECORD, "Its signature does not belong to the peer it names."
    WRONG_PEER = "wrong_peer", Subject.RECORD, "Its signer is not the author, founder, learner or owner that it names."
    CLOCK = (
        "clock",
        Subject.RECORD,
        "One of its times is too far in this node's future: one of the two clocks is wrong.",
    )
    STALE = (
        "stale",
        Subject.RECORD,
        "The group is too old, the manifest is older than the one in force, or an own group was sampled by a policy "
        "too many updates behind.",
    )
    LIMITS = "limits", Subject.RECORD, "A number in it is out of range, or a name, text or list is too long."
    UNKNOWN_KIND = (
        "unknown_kind",
        Subject.RECORD,
        "It is a kind of record that this version of swarm does not know, as a later one may send.",
    )
    UNKNOWN_QUESTION = (
        "unknown_question",
        Subject.RECORD,
        "Its question is of a kind that this version of swarm does not know, as a later one may ask.",
    )

    QUARANTINED = "quarantined", Subject.SENDER, "Its sender is quarantined for earlier offences."
    REPLAYED = (
        "replayed",
        Subject.SENDER,
        "Its sequence number was used before, or it was made before this node last forgot its sender.",
    )
    RATE = "rate", Subject.SENDER, "Its sender exceeds its limit of groups or bytes per minute."
    VERIFY_BUDGET = (
        "verify_budget",
        Subject.SENDER,
        "Its sender's groups exceed their limit of verification time per minute.",
    )

    SLOW_HOLDER = "slow_holder", Subject.CONDUCT, "The peer served a large record below the minimum rate."
    BAD_GIFT = (
        "bad_gift",
        Subject.CONDUCT,
        "In repair, the peer served a record that every honest node refuses, or it announced or offered one.",
    )
    WITHHELD = "withheld", Subject.CONDUCT, "The peer was asked for a group that it had offered, and nobody gave it."
    CORRUPT_CHUNK = "corrupt_chunk", Subject.CONDUCT, "The peer served a chunk other than the one the learner signed."
    FLOOD = (
        "flood",
        Subject.CONDUCT,
        "The peer exceeds its limit of requests per second, sent more on a connection than it was granted, or opens "
        "streams while all that it has are idle.",
    )
    BAD_REQUEST = "bad_request", Subject.CONDUCT, "The peer's request raised an error here."
    BAD_GOSSIP = "bad_gossip", Subject.CONDUCT, "A record that the peer handed over raised an error here."

    FALSE_OFFER = "false_offer", Subject.GROUP, "It is not what its author said of it when it was offered."
    DUPLICATE = "duplicate", Subject.GROUP, "It has arrived before."
    PEER_QUOTA = (
        "peer_quota",
        Subject.GROUP,
        "Its sender's groups already fill one peer's share of the grading queue or the pool.",
    )
    REPEATED = (
        "repeated",
        Subject.GROUP,
        "Others had offered or sent most of its completions for the same question before, or its author had sent them; "
        "or the question is of another peer's stream.",
    )
    COPIED = (
        "copied",
        Subject.GROUP,
        "Most of its completions are long, and it was made, by its own word, more than a minute after another peer had "
        "offered or sent them; or they are this node's own.",
    )
    TOO_LONG = "too_long", Subject.GROUP, "Its prompt with one of its completions does not fit this node's model."
    TOO_MANY = (
        "too_many",
        Subject.GROUP,
        "It has more completions than a group of this run may have (`generation.group_size`).",
    )
    VERIFIER_OVERFLOW = (
        "verifier_overflow",
        Subject.GROUP,
        "The grading queue was full, and this was the oldest group of the sender with the most groups in it.",
    )
    UNKNOWN_TASK = "unknown_task", Subject.GROUP, "Its task is not among this node's tasks."
    OTHER_TASK = "other_task", Subject.GROUP, "Its task runs other code here, with the same options."
    OPTIONS_DIFFER = "options_differ", Subject.GROUP, "Its task's options differ from this node's."
    QUESTION_MISMATCH = (
        "question_mismatch",
        Subject.GROUP,
        "For its reference this node gets a different question, none, or one that is too long.",
    )
    MEDIA_MISMATCH = (
        "media_mismatch",
        Subject.GROUP,
        "A picture, sound or clip of its question is another one here, if only by a pixel.",
    )
    CANNOT_PERCEIVE = (
        "cannot_perceive",
        Subject.GROUP,
        "Its task has pictures, sounds or clips that this node's policy cannot read. Also for this node's own "
        "questions.",
    )
    EPISODE_MISMATCH = (
        "episode_mismatch",
        Subject.GROUP,
        "Replayed here, an episode does not end with its last turn, or the environment answers in another way.",
    )
    UNTRUSTED = (
        "untrusted",
        Subject.GROUP,
        "Its episodes called a tool that only its author has, and this node does not trust its author (`trusted`).",
    )
    HELD_OUT = "held_out", Subject.GROUP, "Its question is held out for evaluation: no node trains on it."
    VERIFIER_TIMEOUT = "verifier_timeout", Subject.GROUP, "Grading it took longer than `verification.time_limit_s`."
    VERIFIER_CRASH = "verifier_crash", Subject.GROUP, "The process that was grading it ended."
    JUDGE_SKIPPED = (
        "judge_skipped",
        Subject.GROUP,
        "Its task has a judge or an `http` reward, and this node asks only about its own groups (`judge.strangers`, "
        "`reward_service.strangers`).",
    )
    JUDGE_BUDGET = (
        "judge_budget",
        Subject.GROUP,
        "Nothing is left of the hourly budget of the judge or reward service for the group, received or own, or it "
        "needs too many requests.",
    )
    JUDGE_TIMEOUT = (
        "judge_timeout",
        Subject.GROUP,
        "The judge or reward service took longer than its `time_limit_s` for the group, received or own.",
    )
    JUDGE_FAILED = (
        "judge_failed",
        Subject.GROUP,
        "The judge or reward service was down, or a reply about the group, received or own, was not as it must be.",
    )
    ZERO_ADVANTAGE = (
        "zero_advantage",
        Subject.GROUP,
        "All completions of the group, received or own, have the same reward.",
    )
    POOL_FULL = (
        "pool_full",
        Subject.GROUP,
        "The pool was full, and this was the oldest group of the author with the most groups in it.",
    )
    NOT_NEEDED = (
        "not_needed",
        Subject.GROUP,
        "It waited until newer ones took its place, and was never graded: more arrives than updates take.",
    )
    EXPIRED = "expired", Subject.GROUP, "It waited, graded or not, for longer than `pool.max_age_s`."
    IMPROBABLE = (
        "improbable",
        Subject.GROUP,
        "It has no signal without its rewarded completions that this policy finds very improbable.",
    )
    HARMFUL = (
        "harmful",
        Subject.GROUP,
        "Its sender is held responsible for a fall of this node's reward, or for a habit that its completions took up. "
        "After a fall: the group was in the pool.",
    )
    UPDATE_SKIPPED = (
        "update_skipped",
        Subject.GROUP,
        "The update that used the group, received or own, took no optimizer step.",
    )
    LOST_IN_RESTART = (
        "lost_in_restart",
        Subject.GROUP,
        "It was waiting or being graded when the node wrote the checkpoint that it later resumed from.",
    )

    NOT_INVITED = (
        "not_invited",
        Subject.FOLLOWED,
        "Its worker is not among those that the learner lists (`learner.workers`).",
    )
    WRONG_VERSION = "wrong_version", Subject.FOLLOWED, "It names a version of the policy that was never published."
    STALE_VERSION = (
        "stale_version",
        Subject.FOLLOWED,
        "The version that sampled it exceeds the learner's staleness bound; a worker does not send it, a learner drops "
        "it.",
    )
    BUFFER_FULL = "buffer_full", Subject.FOLLOWED, "The buffer was full, and this group had the oldest version."
    OTHER_POLICY = "other_policy", Subject.FOLLOWED, "Its tokenizer differs from this policy's."
    OTHER_SAMPLING = (
        "other_sampling",
        Subject.FOLLOWED,
        "Its temperature, `top_p`, `top_k` or `min_p` differs from the learner's.",
    )
    NO_TOKENS = "no_tokens", Subject.FOLLOWED, "A completion lacks token ids or log-probabilities."
    HIDDEN_TOKENS = (
        "hidden_tokens",
        Subject.FOLLOWED,
        "A completion has a special token that its text does not show; a worker does not send it, a learner drops it.",
    )
    WRONG_TOKENS = "wrong_tokens", Subject.FOLLOWED, "The token ids of a completion do not decode to its text."
    WRONG_LOGPROBS = (
        "wrong_logprobs",
        Subject.FOLLOWED,
        "Its log-probabilities differ from those under the snapshots it names.",
    )
    UNLIKE_SAMPLES = (
        "unlike_samples",
        Subject.FOLLOWED,
        "With the other groups of its worker, its completions are more surprising, or less, than samples of the "
        "snapshots that they name can be: they were written or chosen.",
    )

    NOT_SAMPLED = "not_sampled", Subject.OWN, "It has signal but was not drawn for the update."
    NOT_FINISHED = "not_finished", Subject.OWN, "The worker had begun to answer this question and gave it up."
    PROMPT_EMPTY = "prompt_empty", Subject.OWN, "Its prompt has no tokens."
    PROMPT_TOO_LONG = "prompt_too_long", Subject.OWN, "Its prompt leaves no room for a completion."
    UNANSWERED = "unanswered", Subject.OWN, "The endpoint gave no usable answer in three attempts."
    ENGINE_REFUSED = "engine_refused", Subject.OWN, "The engine refused its prompt."


Outcome = Reason | Literal["informative", "used"]
"""The outcome of a received group: it had signal, an update used it, or the reason it was dropped."""

Fate = Reason | Literal["used_local", "used_external"]
"""What became of a group: an update trained on it, as the node's own or another's, or the reason why none did."""


NO_LOSS = frozenset(
    {
        Reason.DUPLICATE,
        Reason.PEER_QUOTA,
        Reason.REPEATED,
        Reason.VERIFIER_OVERFLOW,
        Reason.CANNOT_PERCEIVE,
        Reason.JUDGE_SKIPPED,
        Reason.ZERO_ADVANTAGE,
        Reason.POOL_FULL,
        Reason.NOT_NEEDED,
        Reason.EXPIRED,
    }
)
"""Drops of a healthy swarm: there is nothing to learn from the group, or more arrives than updates take."""


FRAUDS = frozenset({Reason.WRONG_VERSION, Reason.WRONG_LOGPROBS, Reason.UNLIKE_SAMPLES})
"""Outcomes that are never mistakes. They erase a peer's merit: otherwise a long honest life would pay for many lies."""


OF_GRADING = frozenset(
    {
        Reason.UNKNOWN_TASK,
        Reason.OTHER_TASK,
        Reason.OPTIONS_DIFFER,
        Reason.QUESTION_MISMATCH,
        Reason.MEDIA_MISMATCH,
        Reason.EPISODE_MISMATCH,
    }
)
"""Why grading refuses a group: the only reasons that a node believes of the process that read its texts."""


_SENTENCES = {str(reason): reason.sentence for reason in Reason}


def sentence(key: str) -> str:
    """The meaning of a key read from a file, which another version of this project may have written."""
    return _SENTENCES.get(key, "This version of swarm does not know this reason.")
