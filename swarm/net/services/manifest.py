"""Distribution of a run's manifest: any member answers with it, as the founder sealed it."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.errors import OtherRun, PeerUnreachable, Refusal
from swarm.reasons import Reason

MANIFEST_PROTOCOL = "/swarm/manifest/1"


def no_manifest(failures: Sequence[str], refusals: Sequence[Refusal] = ()) -> PeerUnreachable:
    """The error that lists every address with its failure; `refusals` are those of received manifests."""
    if refusals and len(refusals) == len(failures) and all(each.reason == Reason.WRONG_RUN for each in refusals):
        return OtherRun(f"the members asked are in another run: {'; '.join(failures)}")
    split = next((refusal.detail for refusal in refusals if refusal.reason == Reason.SCHEMA_VERSION), None)
    what = (
        f"this run cannot be joined: {split}"
        if split
        else "no peer sent the manifest of its run; check the addresses, and that one of the peers is up"
    )
    return PeerUnreachable(f"{what}: {'; '.join(failures)}")
