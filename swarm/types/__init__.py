"""The records that travel between the parts of a node and between nodes.

All are frozen msgspec structs: the definition is also the wire schema, and decoding refuses numbers and names out of
range. Unknown fields are ignored: a later version may send more of them, with defaults for nodes that do not. A
question travels *by reference*; a receiver regenerates what it needs to grade it.

    bounds ──▶ media ──▶ questions ──▶ completions ──▶ groups ──▶ runs, reports

Records are imported from here; `media.py` and `thumbnails.py` are for code that handles images, audio and video.
"""

from __future__ import annotations

from swarm.types.bounds import (
    ANSWER as ANSWER,
    ELEMENT_BYTES as ELEMENT_BYTES,
    HELD_OUT_STREAMS as HELD_OUT_STREAMS,
    MAX_COMPLETIONS as MAX_COMPLETIONS,
    MAX_INTEGER as MAX_INTEGER,
    MAX_MEASURED as MAX_MEASURED,
    MAX_MESSAGES as MAX_MESSAGES,
    MAX_MULTIADDRS as MAX_MULTIADDRS,
    MAX_NAME_CHARS as MAX_NAME_CHARS,
    MAX_RESULT_CHARS as MAX_RESULT_CHARS,
    MAX_STOPS as MAX_STOPS,
    MAX_TEMPERATURE as MAX_TEMPERATURE,
    MAX_TOLD_TASKS as MAX_TOLD_TASKS,
    MAX_TRUSTED as MAX_TRUSTED,
    MAX_TURNS as MAX_TURNS,
    MEASURED_BYTES as MEASURED_BYTES,
    SCHEMA_VERSION as SCHEMA_VERSION,
    Count as Count,
    Fraction as Fraction,
    LogProb as LogProb,
    Name as Name,
    Positive as Positive,
    RecordId as RecordId,
    Reward as Reward,
    Seconds as Seconds,
    complete as complete,
)
from swarm.types.completions import (
    Completion as Completion,
    FinishReason as FinishReason,
    Sample as Sample,
    Sampling as Sampling,
    Speaker as Speaker,
    Turn as Turn,
    VersionSpan as VersionSpan,
    dialogue as dialogue,
    merged as merged,
)
from swarm.types.groups import (
    Answers as Answers,
    Arrival as Arrival,
    Commitment as Commitment,
    Grade as Grade,
    GradedGroup as GradedGroup,
    Offer as Offer,
    OfferedGroup as OfferedGroup,
    OfferedGroups as OfferedGroups,
    PolicyId as PolicyId,
    ReadTurn as ReadTurn,
    ReceivedGroup as ReceivedGroup,
    RefusedRecord as RefusedRecord,
    Rejection as Rejection,
    RolloutGroup as RolloutGroup,
    VerifiedGroup as VerifiedGroup,
)
from swarm.types.questions import (
    Actions as Actions,
    Context as Context,
    DatasetRef as DatasetRef,
    EpisodeRef as EpisodeRef,
    Message as Message,
    NextTurn as NextTurn,
    Observation as Observation,
    Part as Part,
    Past as Past,
    PendingCall as PendingCall,
    ProceduralRef as ProceduralRef,
    Prompt as Prompt,
    Question as Question,
    Shown as Shown,
    Step as Step,
    StepReward as StepReward,
    TaskRef as TaskRef,
    Terminal as Terminal,
    Text as Text,
    ToolResult as ToolResult,
    Tools as Tools,
    ToolSchema as ToolSchema,
    as_prompt as as_prompt,
    as_text as as_text,
    by_turn as by_turn,
    earned as earned,
    in_words as in_words,
    media_of as media_of,
    observation_text as observation_text,
    shown as shown,
    tools_of as tools_of,
    with_tools as with_tools,
)
from swarm.types.runs import (
    ChunkList as ChunkList,
    Estimate as Estimate,
    Heartbeat as Heartbeat,
    MemberSummary as MemberSummary,
    NetworkStatus as NetworkStatus,
    Orders as Orders,
    PeerRecord as PeerRecord,
    RunManifest as RunManifest,
    SnapshotManifest as SnapshotManifest,
    SwarmWorth as SwarmWorth,
    TaskSpec as TaskSpec,
    Terms as Terms,
    UpdateReport as UpdateReport,
)
