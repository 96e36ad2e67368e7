"""Why something is refused, dropped or held against a peer: the keys of the ledger, of metrics and of peers' accounts.

A value never changes its meaning: it is written to disk, and compared with what other versions wrote there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class Subject(StrEnum):
    """What a reason speaks of first; some apply to others as well, and say so."""

    RECORD = "record"
    """Anything signed: a group, a manifest, a peer record, an announcement, a directory entry."""
    SENDER = "sender"
    """A record refused for the account of whoever signed it."""
    CONDUCT = "conduct"
    """What a peer did on the network; no group is dropped with it."""
    GROUP = "group"
    """A readable group of another peer."""
    FOLLOWED = "followed"
    """A group that its sampler says comes from this learner's snapshots."""
    OWN = "own"
    """A question of this node's own that was not trained on."""


class Reason(StrEnum):
    """Each member is its key; `subject` says what it speaks of, `sentence` what it means."""

    subject: Subject
    sentence: str

    def __new__(cls, key: str, subject: Subject, sentence: str) -> Reason:
        """A string that is `key`, with its explanation."""
        reason = str.__new__(cls, key)
        reason._value_ = key
        reason.subject = subject
        reason.sentence = sentence
        return reason

    OVERSIZED = "oversized", Subject.RECORD, "It is larger than allowed, or would be once decompressed."
    MALFORMED = "malformed", Subject.RECORD, "It cannot be decoded, or is of another kind than expected."
    SCHEMA_VERSION = (
        "schema_version",
        Subject.RECORD,
        "It is of another major version of the protocol than this node speaks: one of the two must be updated.",
    )
    WRONG_RUN = "wrong_run", Subject.RECORD, "It belongs to another run, or this node knows no run yet."
    BAD_SIGNATURE = "bad_signature", Subject.RECORD, "Its signature is not that of the peer it names."
    WRONG_PEER = "wrong_peer", Subject.RECORD, "Its signer is not the author, founder, learner or owner that it names."
    CLOCK = (
        "clock",
        Subject.RECORD,
        "One of its times lies too far in the future by this node's clock: one of the two clocks is wrong.",
    )
    STALE = (
        "stale",
        Subject.RECORD,
        "A group was made too long ago, a manifest is older than the one in force, or an own group was sampled by a "
        "policy too many updates behind.",
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

    QUARANTINED = "quarantined", Subject.SENDER, "Its sender is in quarantine for earlier offences."
    REPLAYED = (
        "replayed",
        Subject.SENDER,
        "Its sequence number was used before, or it was made before its sender was last forgotten here.",
    )
    RATE = "rate", Subject.SENDER, "Its sender sends more groups or bytes a minute than it may."
    VERIFY_BUDGET = (
        "verify_budget",
        Subject.SENDER,
        "Its sender's groups take more verification time a minute than they may.",
    )

    SLOW_HOLDER = "slow_holder", Subject.CONDUCT, "The peer gave a large record more slowly than it must."
    BAD_GIFT = "bad_gift", Subject.CONDUCT, "The peer gave, in repair, a record that every honest node refuses."
    CORRUPT_CHUNK = "corrupt_chunk", Subject.CONDUCT, "The peer gave a chunk other than the one the learner signed for."
    FLOOD = "flood", Subject.CONDUCT, "The peer makes more requests a second than it may."
    BAD_REQUEST = "bad_request", Subject.CONDUCT, "The peer made a request that raised an error here."
    BAD_GOSSIP = "bad_gossip", Subject.CONDUCT, "The peer sent a gossip message that raised an error here."

    DUPLICATE = "duplicate", Subject.GROUP, "It has arrived before."
    PEER_QUOTA = (
        "peer_quota",
        Subject.GROUP,
        "Its sender's groups already take up as much of the grading queue or the pool as one peer's may.",
    )
    REPEATED = "repeated", Subject.GROUP, "Most of its completions were given to the same question before."
    COPIED = (
        "copied",
        Subject.GROUP,
        "Most of its completions are long, and another peer gave them to the same question a minute ago or more.",
    )
    TOO_LONG = "too_long", Subject.GROUP, "The prompt with one of its completions does not fit this node's model."
    VERIFIER_OVERFLOW = (
        "verifier_overflow",
        Subject.GROUP,
        "The queue for grading was full, and it was the oldest group of the sender with the most in it.",
    )
    UNKNOWN_TASK = "unknown_task", Subject.GROUP, "Its task is not among this node's tasks."
    OPTIONS_DIFFER = "options_differ", Subject.GROUP, "Its task has other options at this node."
    QUESTION_MISMATCH = (
        "question_mismatch",
        Subject.GROUP,
        "This node gets another question for its reference, none at all, or one that is too long.",
    )
    VERIFIER_TIMEOUT = "verifier_timeout", Subject.GROUP, "Grading it took longer than `verification.time_limit_s`."
    VERIFIER_CRASH = "verifier_crash", Subject.GROUP, "The process that was grading it ended."
    ZERO_ADVANTAGE = (
        "zero_advantage",
        Subject.GROUP,
        "All completions of the group, another's or own, have the same reward.",
    )
    POOL_FULL = (
        "pool_full",
        Subject.GROUP,
        "The pool was full, and it was the oldest group of the author with the most in it.",
    )
    EXPIRED = "expired", Subject.GROUP, "It was in the pool for longer than `pool.max_age_s`."
    IMPROBABLE = (
        "improbable",
        Subject.GROUP,
        "Without the rewarded completions that this policy finds very improbable, it has no signal.",
    )
    HARMFUL = (
        "harmful",
        Subject.GROUP,
        "The group was in the pool, or groups of the sender were in the updates, when this node became worse.",
    )
    UPDATE_SKIPPED = (
        "update_skipped",
        Subject.GROUP,
        "The update that used the group, another's or own, took no optimizer step.",
    )
    LOST_IN_RESTART = (
        "lost_in_restart",
        Subject.GROUP,
        "It was being graded when the checkpoint was written that the node went on from.",
    )

    WRONG_VERSION = "wrong_version", Subject.FOLLOWED, "It names a version of the policy that was never published."
    STALE_VERSION = (
        "stale_version",
        Subject.FOLLOWED,
        "It was sampled by a version older than the learner's staleness bound allows; a worker does not send it, a "
        "learner drops it.",
    )
    BUFFER_FULL = "buffer_full", Subject.FOLLOWED, "The buffer was full, and it had the oldest version in it."
    OTHER_POLICY = "other_policy", Subject.FOLLOWED, "Its tokenizer is not that of this policy."
    OTHER_SAMPLING = "other_sampling", Subject.FOLLOWED, "It was sampled at another temperature than the learner's."
    NO_TOKENS = "no_tokens", Subject.FOLLOWED, "A completion has no token ids or no log-probabilities."
    HIDDEN_TOKENS = (
        "hidden_tokens",
        Subject.FOLLOWED,
        "A completion has a special token that its text does not show; a worker does not send it, a learner drops it.",
    )
    WRONG_TOKENS = "wrong_tokens", Subject.FOLLOWED, "The token ids of a completion do not decode to its text."
    WRONG_LOGPROBS = (
        "wrong_logprobs",
        Subject.FOLLOWED,
        "Its log-probabilities are not those that the snapshots it names give.",
    )

    NOT_SAMPLED = "not_sampled", Subject.OWN, "It has signal, but was not drawn for the update."
    NOT_FINISHED = "not_finished", Subject.OWN, "A worker ended the batch before this question was answered."
    PROMPT_EMPTY = "prompt_empty", Subject.OWN, "Its prompt has no tokens."
    PROMPT_TOO_LONG = "prompt_too_long", Subject.OWN, "Its prompt leaves no room for a completion."
    ENGINE_REFUSED = "engine_refused", Subject.OWN, "The engine refused its prompt."


Outcome = Reason | Literal["informative", "used"]
"""What became of a received group: it had signal, an update used it, or why it was given up."""


_SENTENCES = {str(reason): reason.sentence for reason in Reason}


def sentence(key: str) -> str:
    """What a key read from a file means; another version of this project may have written it."""
    return _SENTENCES.get(key, "This version of swarm does not know this reason.")
