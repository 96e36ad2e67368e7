"""Files of pictures, sounds and clips: what is made of good ones, exactly, and what happens to bad ones."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from contextlib import closing
from io import BytesIO
from pathlib import Path

import numpy
import PIL.Image
import pyarrow
import pyarrow.parquet
import pytest

from swarm.environments.config import VerificationSettings
from swarm.environments.decoding.files import Undecodable
from swarm.environments.decoding.pictures import read_picture
from swarm.environments.decoding.pixels import new_size, scaled
from swarm.environments.decoding.settings import MediaSettings
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import TaskError
from swarm.extras.audio_video.clips import read_clip
from swarm.extras.audio_video.sounds import read_sound, resampled
from swarm.types import Rejection
from swarm.types.media import MAX_SIDE, Image
from tests.environments.altered import alter_workers
from tests.environments.bad_files import COUNT, bad_files
from tests.environments.media_examples import Pixels, clip, gradient, picture, sound, wave

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


def test_sounds_are_mixed_into_one_channel_and_converted_exactly() -> None:
    mono = numpy.frombuffer(read_sound(sound(), PLAIN).samples, "<i2")
    assert (mono == wave()).all()
    stereo = numpy.frombuffer(read_sound(sound(wave(num_channels=2), "FLAC"), PLAIN).samples, "<i2")
    assert (stereo == (3 * wave().astype(int) + 1) // 2).all()
    thousands = numpy.arange(0, 9_000, 1_000)
    assert resampled(thousands, 8_000, 16_000).tolist()[:6] == [0, 500, 1_000, 1_500, 2_000, 2_500]
    assert resampled(thousands, 8_000, 4_000).tolist() == [500, 2_500, 4_500, 6_500]
    assert resampled(thousands, 9_000, 3_000).tolist() == [1_000, 4_000, 7_000]
    assert len(read_sound(sound(suffix="MP3", rate=16_000), MediaSettings(rate=8_000)).samples) > 500


def test_the_colours_of_a_clip_are_those_that_were_stored() -> None:
    plain = [numpy.full((16, 32, 3), colour, numpy.uint8) for colour in ((250, 10, 10), (10, 10, 250), (90, 90, 90))]
    every = MediaSettings(frames_per_s=8)
    for codec, container, colours in (("libx264", "mp4", "yuv420p"), ("libvpx-vp9", "webm", "yuv420p"),
                                      ("ffv1", "matroska", "yuv444p"), ("ffv1", "matroska", "bgr0")):  # fmt: skip
        read = read_clip(clip(plain * 4, container, codec, colours), every)
        frames = numpy.frombuffer(read.frames, numpy.uint8).reshape(12, 16, 32, 3).astype(int)
        for number, frame in enumerate(frames):
            assert abs(frame.mean(axis=(0, 1)) - plain[number % 3][0, 0]).max() < 12, (codec, number)
    assert read_clip(clip(), MediaSettings(frames_per_s=4)).num_frames == 8


def test_limits_are_the_tasks() -> None:
    with pytest.raises(Undecodable, match="longer than 0.05 s"):
        read_sound(sound(), MediaSettings(max_seconds=0.05))
    with pytest.raises(Undecodable, match="longer than 1 s"):
        read_clip(clip(), MediaSettings(max_seconds=1))
    with pytest.raises(Undecodable, match="more than 3 frames at 8 a second"):
        read_clip(clip(), MediaSettings(frames_per_s=8, max_frames=3))
    assert read_clip(clip(), MediaSettings(max_pixels=128)).width == 16
    assert read_clip(clip([gradient(640, 480)] * 4), PLAIN).width == 482


MEMORY_BYTES = 2**31
TRY_ALL = """
import json, pickle, resource, sys, time
from pathlib import Path
from swarm.environments.sandbox.confinement import Confinement
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]),) * 2)
files = pickle.loads(Path(sys.argv[1]).read_bytes())
from swarm.environments.decoding.choice import decoders
from swarm.environments.decoding.files import Undecodable
from swarm.environments.decoding.settings import MediaSettings
settings = MediaSettings(images="i", audios="a", videos="v")
status = open("/proc/self/status")  # ru_maxrss would count the test process, too, which began this one
confinement = Confinement()
confinement.enclose([], [], network=False)
read = decoders("bad", settings)
confinement.seal()
for name, modality, file in files:
    began = time.monotonic()
    try:
        said = str(read[modality](file, settings))
    except Undecodable as error:
        said = f"refused: {error}"
    status.seek(0)
    memory = 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])
    print(json.dumps([name, said, time.monotonic() - began, memory]), flush=True)
"""


def test_two_hundred_bad_files_are_refused_in_a_sandbox_soon_and_in_bounded_memory(tmp_path: Path) -> None:
    files = bad_files()
    assert len(files) == COUNT
    (tmp_path / "files").write_bytes(pickle.dumps(files))
    tried = subprocess.run(
        [sys.executable, "-c", TRY_ALL, str(tmp_path / "files"), str(MEMORY_BYTES)], capture_output=True, text=True
    )
    said = list(map(json.loads, tried.stdout.splitlines()))
    assert len(said) == COUNT, f"{files[len(said)][0]} ended the worker: {tried.stderr[-1_000:]}"
    assert {name: text for name, text, _, _ in said if not text.startswith("refused: ")} == {}
    assert {name: text for name, text, _, _ in said if len(text) > 400} == {}
    assert {name: seconds for name, _, seconds, _ in said if seconds > 10} == {}
    assert max(memory for *_, memory in said) < 2**30


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
import swarm.environments.decoding.choice as choice
def poisoned(modality):
    def read(file, settings):
        if poison:
            {act}
        return decoder(file, settings)
    decoder = honest(modality)
    return read
honest, choice._decoder = choice._decoder, poisoned
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
