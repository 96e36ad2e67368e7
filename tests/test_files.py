"""Files are replaced as a whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from swarm.files import replace_file


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_and_nothing_else_stays(tmp_path: Path, durable: bool) -> None:
    replace_file(tmp_path / "kept", b"first", durable=durable)
    replace_file(tmp_path / "kept", b"second", durable=durable)
    assert (tmp_path / "kept").read_bytes() == b"second"
    assert os.listdir(tmp_path) == ["kept"]


def test_on_a_full_disk_the_earlier_content_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_file(tmp_path / "kept", b"first")

    def write_half(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(OSError, match="No space"):
        replace_file(tmp_path / "kept", b"second")
    assert (tmp_path / "kept").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["kept"]
