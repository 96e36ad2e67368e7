"""Files of pictures, sounds and clips: what is made of good ones, exactly, and what happens to bad ones."""

from __future__ import annotations

from contextlib import closing
from io import BytesIO
from pathlib import Path

import numpy
import PIL.Image
import pyarrow
import pyarrow.parquet
import pytest

from swarm.environments.config import VerificationSettings
from swarm.environments.decoding.files import MediaSettings
from swarm.environments.decoding.pictures import read_picture
from swarm.environments.decoding.pixels import new_size, scaled
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import TaskError
from swarm.types import Rejection
from swarm.types.media import MAX_SIDE, Image
from tests.environments.altered import alter_workers
from tests.environments.media_examples import Pixels, gradient, picture

PLAIN = MediaSettings()


def pixels(image: Image) -> Pixels:
    return numpy.frombuffer(image.pixels, numpy.uint8).reshape(image.height, image.width, 3)


@pytest.mark.parametrize("suffix", ["PNG", "BMP", "WEBP"])
def test_a_lossless_picture_is_read_as_it_is(suffix: str) -> None:
    options = {"lossless": True} if suffix == "WEBP" else {}
    assert (pixels(read_picture(picture(gradient(), suffix, **options), PLAIN)) == gradient()).all()


def test_what_is_transparent_shows_white_and_greys_become_colours() -> None:
    transparent = numpy.dstack([gradient(), numpy.full((16, 24), 51, numpy.uint8)])
    expected = (gradient().astype(int) * 51 + 255 * 204 + 127) // 255
    assert (pixels(read_picture(picture(transparent), PLAIN)) == expected).all()
    grey = numpy.arange(0, 65_536, 257, numpy.uint16).reshape(16, 16)
    sink = BytesIO()
    PIL.Image.fromarray(grey).save(sink, "PNG")
    assert (pixels(read_picture(sink.getvalue(), PLAIN))[..., 1] == grey >> 8).all()
    sink = BytesIO()
    PIL.Image.fromarray(gradient()).quantize(8).save(sink, "GIF")
    assert read_picture(sink.getvalue(), PLAIN).width == 24


def test_a_picture_is_turned_as_its_camera_says() -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    turned = read_picture(picture(gradient(), exif=exif.tobytes()), PLAIN)
    assert (turned.width, turned.height) == (16, 24)
    assert (pixels(turned) == numpy.rot90(gradient(), -1)).all()


def test_a_large_picture_is_made_smaller_by_means_of_blocks() -> None:
    small = read_picture(picture(gradient(64, 48)), MediaSettings(max_pixels=32 * 24))
    blocks = gradient(64, 48).astype(int).reshape(24, 2, 32, 2, 3).sum(axis=(1, 3))
    assert (pixels(small) == (blocks + 2) // 4).all()
    for width, height, most in ((10_000, 50, 2**20), (1, 60_000, 64), (7, 5, 12), (60_000, 500, 2**22), (3, 3, 9)):
        new = new_size(width, height, most)
        assert min(new) >= 1 and max(new) <= MAX_SIDE and new[0] * new[1] <= most
        assert new[0] <= width and new[1] <= height
    assert (scaled(numpy.full((500, 300, 3), 255, numpy.uint8), 64) == 255).all()


def rows(folder: Path, file: bytes) -> DatasetTask:
    table = pyarrow.Table.from_pylist([{"question": "?", "answer": "1", "image": file}] * 20)
    pyarrow.parquet.write_table(table, folder / "rows.parquet")
    return DatasetTask(kind="dataset", name="rows", path=str(folder / "rows.parquet"), images="image")


def test_bad_rows_are_counted_and_a_task_of_nothing_else_is_an_error(tmp_path: Path) -> None:
    reason = "64 rows drawn .* were malformed; row .*: picture: UnidentifiedImageError"
    with (
        closing(VerificationPool([rows(tmp_path, b"no picture")], VerificationSettings())) as pool,
        pytest.raises(TaskError, match=reason),
    ):
        pool.draw(0, 0, 1)


POISONED = """
import os, signal, time
import swarm.environments.decoding.files as choice
def poisoned(task, settings):
    def read(file, settings):
        if poison:
            {act}
        return decoder(file, settings)
    decoder = honest(task, settings)["image"]
    return {{"image": read}}
honest, choice.decoders = choice.decoders, poisoned
import swarm.environments.verification.worker as worker
def answer(mixture, request):
    poison[:] = [request] if isinstance(request, worker.GradeGroup) else []
    return answers(mixture, request)
poison = []
answers, worker._answer = worker._answer, answer
import swarm.environments.sources.hf_datasets as source
source.NUM_WITH_MEDIA = 0
"""


@pytest.mark.parametrize(
    ("act", "reason"),
    [("os._exit(1)", "verifier_crash"), ("time.sleep(600)", "verifier_timeout")],
)
def test_a_file_that_kills_or_hangs_its_worker_costs_one_group(
    act: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter_workers(POISONED.format(act=act), tmp_path / "code", monkeypatch)
    config = rows(tmp_path, picture())
    time_limit_s = 2.0 if reason == "verifier_timeout" else 60.0
    with closing(VerificationPool([config], VerificationSettings(time_limit_s=time_limit_s))) as pool:
        (question,) = pool.draw(0, 0, 1)
        (refused,) = pool.grade([(question.ref, ["1"])])
        assert isinstance(refused, Rejection) and refused.reason == reason
        assert pool.draw(0, 0, 1) == [question], "another worker is there"
