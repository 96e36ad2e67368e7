"""Files are replaced as a whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from swarm.files import open_private, private_directory, replace_file


def test_directories_and_files_are_their_owner_s_alone_also_those_that_were_there(tmp_path: Path) -> None:
    for mode in (None, 0o755, 0o770):
        folder = tmp_path / "some" / f"where-{mode}"
        if mode is not None:
            folder.mkdir(parents=True)
            folder.chmod(mode)
            (folder / "log").write_text("before\n")
        assert private_directory(folder) and folder.stat().st_mode & 0o777 == 0o700
        with open_private(folder / "log", "ab") as file:
            file.write(b"now\n")
        replace_file(folder / "list", b"")
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        assert (folder / "log").read_text().endswith("now\n")
    assert (tmp_path / "some").stat().st_mode & 0o055, "only the last one of a path"


def test_a_directory_that_is_common_to_all_stays_so(tmp_path: Path) -> None:
    common = tmp_path / "common"
    common.mkdir()
    common.chmod(0o1777)
    assert not private_directory(common) and common.stat().st_mode & 0o7777 == 0o1777


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
