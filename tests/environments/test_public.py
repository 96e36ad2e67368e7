"""Data sets that a founder names, read from a hub on this machine by a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.environments.media_examples import picture

from .hub import PRIVATE, serving

READ = """
import json, os, sys
from swarm.errors import SwarmError
from swarm.environments.sources.hf_datasets import DatasetSource
from swarm.environments.specs import from_specs
from swarm.types import TaskSpec, as_text
for path in sys.argv[1:]:
    try:
        shown = {"images": "picture"} if "shown" in path else {}
        [config] = from_specs([TaskSpec("rows", "dataset", 1.0, {"path": path, **shown})])
        said = as_text(DatasetSource(config).question(1, 1).prompt)
    except SwarmError as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps(said), flush=True)
os._exit(0)  # threads of the library that still read abort a process that ends otherwise
"""
ROWS = "".join(json.dumps({"question": f"public {n}", "answer": str(n)}) + "\n" for n in range(20)).encode()
SECRET = ROWS.replace(b"public", b"SECRET")


def card(place: object) -> bytes:
    configs = [{"config_name": "default", "data_files": [{"split": "train", "path": place}]}]
    return f"---\nconfigs: {json.dumps(configs)}\n---\n".encode()


def pictures(stored: dict[str, object], column: str = "question") -> bytes:
    """Rows with a picture that is stored in this way."""
    import datasets

    features = datasets.Features({"question": datasets.Value("string"), "answer": datasets.Value("string")})
    features[column] = datasets.Image()
    rows: dict[str, list[object]] = {"question": ["public"] * 20, "answer": ["1"] * 20}
    rows[column] = [stored] * 20
    sink = pyarrow.BufferOutputStream()
    table = pyarrow.Table.from_pydict(rows, schema=features.arrow_schema)
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the member, in a folder where a repository's name leads too."""
    folder = tmp_path / "good" / "sums"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_bytes(SECRET)
    return folder / "train.jsonl"


def test_only_a_public_repository_is_read(secret: Path, tmp_path: Path) -> None:
    with serving({}) as elsewhere:
        repositories = {
            "good/sums": {"data/train.jsonl": ROWS, "README.md": b"---\nlicense: mit\n---\n"},
            "member/diary": {"train.jsonl": SECRET, PRIVATE: b""},
            "evil/absolute": {"train.jsonl": ROWS, "README.md": card(str(secret))},
            "evil/relative": {"train.jsonl": ROWS, "README.md": card("../../good/sums/*.jsonl")},
            "evil/chain": {"train.jsonl": ROWS, "README.md": card(["train.jsonl", f"simplecache::file://{secret}"])},
            "evil/request": {"train.jsonl": ROWS, "README.md": card(f"{elsewhere.url}/x.jsonl")},
            "evil/beside": {"train.jsonl": ROWS, ".huggingface.yaml": b"configs: []"},
            "evil/archive": {"train.tar": b"\0" * 10_240},
            "evil/pictures": {"train.parquet": pictures({"path": "/etc/hostname"})},
            "good/shown": {"train.parquet": pictures({"bytes": picture(), "path": "1.png"}, "picture")},
            "evil/shown-path": {"train.parquet": pictures({"path": str(secret)}, "picture")},
            "evil/shown-url": {"train.parquet": pictures({"path": f"{elsewhere.url}/1.png"}, "picture")},
            "evil/shown-question": {"train.parquet": pictures({"path": str(secret)})},
        }
        with serving(repositories) as hub:
            paths = {"HF_HOME": str(tmp_path / "hf"), "HF_DATASETS_CACHE": str(tmp_path / "cache")}
            asked = subprocess.run(
                [sys.executable, "-c", READ, *repositories],
                cwd=tmp_path,
                env={**os.environ, **paths, **hub.environment(), "HF_TOKEN": "hf_of_the_member"},
                capture_output=True,
                text=True,
            )
        assert asked.returncode == 0, asked.stderr
        said = dict(zip(repositories, map(json.loads, asked.stdout.splitlines()), strict=True))
        assert said["good/sums"].startswith("public")
        assert said["good/shown"] == "[image 24 x 16]\npublic"
        reasons = {
            "member/diary": "RepositoryNotFoundError",
            "evil/absolute": "not in the repository",
            "evil/relative": "not in the repository",
            "evil/chain": "not in the repository",
            "evil/request": "not in the repository",
            "evil/beside": "which is not supported",
            "evil/archive": "its reader is 'webdataset'",
            "evil/pictures": "must be of texts and numbers, got Image",
            "evil/shown-path": "only local data sets may have paths",
            "evil/shown-url": "only local data sets may have paths",
            "evil/shown-question": "no column 'picture'",
        }
        for path, reason in reasons.items():
            assert reason in said[path] and "SECRET" not in said[path], said[path]
        assert hub.asked and not any(token for _, token in hub.asked), "the member's token was shown to the hub"
        assert not elsewhere.asked, "a repository made this machine ask another"
