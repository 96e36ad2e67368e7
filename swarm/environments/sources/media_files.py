"""Files that the rows of a local data set name, in its own folder and nowhere else."""

from __future__ import annotations

from pathlib import Path

from swarm.environments.decoding.files import MAX_FILE_BYTES
from swarm.environments.sources.columns import MalformedRow


class MediaFiles:
    """The folder of a data set on this machine."""

    def __init__(self, folder: Path) -> None:
        """Paths in rows are relative to `folder`."""
        self._folder = folder.resolve()

    def read(self, path: str) -> bytes:
        """The content of a file. Raises `MalformedRow` for one that is not in the folder, or too large."""
        try:
            place = (self._folder / path).resolve()
            if not place.is_relative_to(self._folder):
                raise MalformedRow(f"the file {path[:200]!r} is not in the data set's folder")
            if not place.is_file():
                raise MalformedRow(f"there is no file {path[:200]!r} in the data set's folder")
            with place.open("rb") as opened:
                return opened.read(MAX_FILE_BYTES + 1)
        except PermissionError as error:
            hint = "put the data set into a folder of its own, which is neither the home directory nor /"
            raise MalformedRow(f"may not read {path[:200]!r}: {hint}") from error
        except (OSError, ValueError, RuntimeError) as error:  # a null byte, links without end
            raise MalformedRow(f"cannot read {path[:200]!r}: {error}") from error
