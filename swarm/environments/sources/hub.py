"""Data sets that a run's founder names, read only from public repositories of the hub.

A repository is untrusted, too. Its card may list data files by absolute path, by URL of any protocol, or in formats
that unpickle: `datasets` would open them on this machine. So this module first reads the card of the exact commit that
it then loads, and checks the library's list of files before any is opened. It does not use this user's access token: a
founder could name a private data set of a member.
"""

from __future__ import annotations

from collections.abc import Iterator

import datasets
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCard, HfApi
from huggingface_hub.hf_api import DatasetInfo

from swarm.errors import TaskError

READERS = frozenset({"csv", "json", "parquet", "text"})
"""Packaged builders that yield plain values and execute nothing."""
MAX_DOWNLOAD_BYTES = 4 * 2**30
TIMEOUT_S = 30.0
CARD = "README.md"
CARD_BESIDE = ".huggingface.yaml"


def public_builder(path: str, subset: str | None, revision: str | None) -> datasets.DatasetBuilder:
    """A builder for the public repository `path`.

    Raises `TaskError` if it could read anything else, and whatever the library raises on untrusted input.
    """
    hub = HfApi(token=False)
    info = hub.dataset_info(path, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
    for problem in _card_problems(hub, path, info):
        raise TaskError(problem)
    # With its scheme the path cannot name a local folder or a packaged builder.
    builder = datasets.load_dataset_builder(f"hf://datasets/{path}", subset, revision=info.sha, token=False)
    for problem in _builder_problems(builder, path, info):
        raise TaskError(problem)
    return builder


def _card_problems(hub: HfApi, path: str, info: DatasetInfo) -> Iterator[str]:
    """Entries of the repository's card that point outside the repository."""
    files = {sibling.rfilename for sibling in info.siblings or ()}
    if info.private or info.gated:
        yield "it is not public"
    if CARD_BESIDE in files:
        yield f"it is described by {CARD_BESIDE}, which is not supported"
    if CARD not in files:
        return
    downloaded = hub.hf_hub_download(path, CARD, repo_type="dataset", revision=info.sha)
    for name, options in MetadataConfigs.from_dataset_card_data(DatasetCard.load(downloaded).data).items():
        for place in (*_places(options.get("data_files")), *_places(options.get("data_dir"))):
            if not _is_inside(place):
                yield f"its subset {name!r} has the path {place!r}, which is not in the repository"


def _places(value: object) -> Iterator[str]:
    """Every text in a card's list of files."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _places(value.get("path"))
    elif isinstance(value, list):
        for item in value:
            yield from _places(item)


def _is_inside(place: str) -> bool:
    return not place.startswith(("/", "~")) and ".." not in place and ":" not in place and "\\" not in place


def _builder_problems(builder: datasets.DatasetBuilder, path: str, info: DatasetInfo) -> Iterator[str]:
    reader = type(builder).__module__.rpartition(".")[2]
    if reader not in READERS:
        yield f"its reader is {reader!r}, must be one of {', '.join(sorted(READERS))}"
    files = [file for split in (builder.config.data_files or {}).values() for file in split]
    root = f"hf://datasets/{path}@{info.sha}/"
    sizes = {f"{root}{sibling.rfilename}": sibling.size or 0 for sibling in info.siblings or ()}
    for file in files:
        if file not in sizes:
            yield f"its file {file!r} is not in the repository"
    num_bytes = sum(sizes.get(file, 0) for file in files)
    if not files or num_bytes > MAX_DOWNLOAD_BYTES:
        yield f"must have files of 1 to {MAX_DOWNLOAD_BYTES} bytes in total, got {num_bytes} in {len(files)} files"
