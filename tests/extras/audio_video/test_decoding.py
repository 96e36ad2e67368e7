"""Files of sounds and clips: what is made of good ones, exactly; and two hundred bad files of all kinds."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from swarm.environments.decoding.files import MediaSettings, Undecodable
from swarm.extras.audio_video.clips import read_clip
from swarm.extras.audio_video.sounds import read_sound, resampled
from tests.environments.media_examples import clip, gradient, sound, wave
from tests.extras.audio_video.bad_files import COUNT, bad_files

PLAIN = MediaSettings()


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
from swarm.environments.decoding.files import decoders
from swarm.environments.decoding.files import Undecodable
from swarm.environments.decoding.files import MediaSettings
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
