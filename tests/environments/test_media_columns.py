"""Data sets with pictures, sounds and clips: where they are stored, where they go in the prompt, what is refused."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from swarm.environments.config import VerificationSettings
from swarm.environments.decoding.files import MediaSettings
from swarm.environments.decoding.pictures import read_picture
from swarm.environments.mixture import TaskMixture
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.hf_datasets import DatasetSource
from swarm.environments.specs import from_specs, to_specs
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import Refusal, TaskError
from swarm.types import Grade, Message, Prompt, Rejection, Text, media_of
from swarm.types.media import Audio, Image, Video
from tests.environments.media_examples import clip, gradient, picture, sound

PICTURES = [picture(gradient(seed=seed)) for seed in range(8)]
IMAGES = [read_picture(each, MediaSettings()) for each in PICTURES]
IMAGE_ROWS = datasets.List(datasets.Image())


def task(path: Path, **settings: object) -> DatasetTask:
    return DatasetTask.model_validate({"kind": "dataset", "name": "rows", "path": str(path), "ask": "", **settings})


def parquet(
    folder: Path, rows: list[dict[str, object]], features: dict[str, object] | None = None, name: str = "rows"
) -> Path:
    """A file of rows, with the features that `datasets` writes into it if there are any."""
    schema = None if features is None else datasets.Features(features).arrow_schema
    path = folder / f"{name}.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)
    return path


def jsonl(folder: Path, rows: list[dict[str, object]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def asked(config: DatasetTask) -> Prompt:
    return DatasetSource(config).question(0, 0).prompt


def user(*parts: str | Image | Audio | Video) -> Prompt:
    return (Message("user", tuple(Text(part) if isinstance(part, str) else part for part in parts)),)


STORED = {
    "one": (datasets.Image(), {"bytes": PICTURES[0], "path": None}),
    "with a name": (datasets.Image(), {"bytes": PICTURES[0], "path": "0.png"}),
    "a list": (IMAGE_ROWS, [{"bytes": PICTURES[0], "path": None}]),
    "bytes": (datasets.Value("binary"), PICTURES[0]),
    "a list of bytes": (datasets.List(datasets.Value("binary")), [PICTURES[0]]),
    "plain columns": ({"bytes": datasets.Value("binary"), "path": datasets.Value("string")}, {"bytes": PICTURES[0]}),
}


@pytest.mark.parametrize("how", STORED)
def test_a_picture_is_found_however_it_is_stored(how: str, tmp_path: Path) -> None:
    feature, value = STORED[how]
    features = {"question": datasets.Value("string"), "answer": datasets.Value("string"), "image": feature}
    path = parquet(tmp_path, [{"question": "What?", "answer": "1", "image": value}] * 3, features)
    config = task(path, images="image")
    assert asked(config) == user(IMAGES[0], "What?")
    assert config.media == {"image"} and task(path).media == frozenset()


def test_verls_rows_have_places_in_their_messages(tmp_path: Path) -> None:
    stored = [{"bytes": each, "path": None} for each in PICTURES[:2]]
    content = "<image>Find x.<image> And <video>."
    row = {
        "prompt": [{"role": "system", "content": "An <image> here is text."}, {"role": "user", "content": content}],
        "images": stored,
        "reward_model": {"ground_truth": "4", "style": "rule"},
    }
    config = task(
        parquet(tmp_path, [row]), prompt="prompt", answer="reward_model.ground_truth", images="images", ask="Box it."
    )
    first, second = IMAGES[:2]
    parts = (first, Text("Find x."), second, Text(" And <video>.\nBox it."))
    assert asked(config) == (Message("system", "An <image> here is text."), Message("user", parts))


def test_lists_of_parts_have_places_or_hold_the_picture_themselves(tmp_path: Path) -> None:
    part = {"type": datasets.Value("string"), "text": datasets.Value("string"), "image": datasets.Image()}
    messages = datasets.List({"role": datasets.Value("string"), "content": datasets.List(part)})
    features = {"messages": messages, "answer": datasets.Value("string"), "images": IMAGE_ROWS}
    held = {"type": "image", "image": {"bytes": PICTURES[1], "path": None}}
    content = [{"type": "text", "text": "Between"}, {"type": "image"}, {"type": "text", "text": "and"}, held]
    row = {"messages": [{"role": "user", "content": content}], "answer": "1", "images": [{"bytes": PICTURES[0]}]}
    path = parquet(tmp_path, [row], features)
    config = task(path, prompt="messages", images="images", inline=["image"])
    assert asked(config) == user("Between", IMAGES[0], "and", IMAGES[1])
    with pytest.raises(TaskError, match="the task's `inline` does not list"):
        asked(task(path, prompt="messages", images="images"))
    assert task(path, prompt="messages", inline=["image"]).media == {"image"}


def test_a_url_that_is_its_own_picture_is_read_and_no_other(tmp_path: Path) -> None:
    def rows(url: str) -> DatasetTask:
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What?"}]
        path = jsonl(tmp_path, [{"prompt": [{"role": "user", "content": parts}], "answer": "1"}])
        return task(path, prompt="prompt", inline=["image"])

    held = f"data:image/png;base64,{base64.b64encode(PICTURES[2]).decode()}"
    assert asked(rows(held)) == user(IMAGES[2], "What?")
    for url, reason in (("https://example.org/1.png", "must hold its picture"), (held[:-1], "not in base64")):
        with pytest.raises(TaskError, match=reason):
            asked(rows(url))


def test_without_places_media_precede_the_last_text_of_the_user(tmp_path: Path) -> None:
    row = {"q": "What?", "answer": "1", "images": PICTURES[:2], "audio": sound(), "video": clip()}
    config = task(
        parquet(tmp_path, [row]), prompt="{q} Please.", images="images", audios="audio", videos="video", rate=4_000
    )
    prompt = asked(config)
    assert not isinstance(prompt, str)
    first, second, heard, seen, text = prompt[0].parts
    assert (first, second, text) == (*IMAGES[:2], Text("What? Please."))
    assert isinstance(heard, Audio) and (heard.rate, len(heard.samples)) == (4_000, 800)
    assert isinstance(seen, Video) and (seen.num_frames, seen.frames_per_s) == (4, 2.0)
    assert config.media == {"image", "audio", "video"}


def test_choices_and_the_request_follow_the_last_text(tmp_path: Path) -> None:
    row = {"question": "Which?<image>", "choices": ["a", "b"], "answer": "B", "image": PICTURES[0]}
    config = task(parquet(tmp_path, [row]), choices="choices", images="image", find="whole", ask="The letter.")
    assert asked(config) == user("Which?\nA. a\nB. b\nThe letter.", IMAGES[0])
    only = {"question": "<image>", "answer": "1", "image": PICTURES[0]}
    assert asked(task(parquet(tmp_path, [only], name="only"), images="image", ask="Say.")) == user(IMAGES[0], "\nSay.")


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "fewer places": ({"question": "<image> and", "image": PICTURES[:2]}, "1 places for 2 items of image"),
    "more places": ({"question": "<image><image>", "image": PICTURES[:1]}, "2 places for 1 items of image"),
    "no picture": ({"question": "<image>", "image": []}, "1 places for 0 items of image"),
    "too many": ({"question": "?", "image": PICTURES[:1] * 17}, "at most 16 pictures, sounds and clips, got 17"),
    "no file": ({"question": "?", "image": [b""]}, "picture: the file is empty"),
    "no picture's file": ({"question": "?", "image": [sound()]}, "picture: UnidentifiedImageError"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_malformed_row_is_refused_with_the_reason_and_counted(what: str, tmp_path: Path) -> None:
    row, reason = REFUSED[what]
    source = DatasetSource(task(parquet(tmp_path, [{**row, "answer": "1"}]), images="image"))
    with pytest.raises(TaskError, match=reason):
        source.question(0, 0)
    assert source.counts["malformed_rows"] == 64


def test_media_of_a_question_fit_together(tmp_path: Path) -> None:
    large = picture(gradient(1_024, 1_024))
    path = parquet(tmp_path, [{"question": "?", "answer": "1", "image": [large] * 6}])
    with pytest.raises(TaskError, match="pictures, sounds and clips of 18874368 bytes, more than 16777216"):
        asked(task(path, images="image"))
    prompt = asked(task(path, images="image", max_pixels=2**14))
    assert [(each.width, each.height) for each in media_of(prompt) if isinstance(each, Image)] == [(128, 128)] * 6


def pets(folder: Path, pixels: int = 0, where: str = "pictures") -> Path:
    """A file whose rows name pictures in a folder beside it."""
    (folder / where).mkdir(parents=True)
    for number in range(12):
        changed = gradient(seed=number)
        changed[3, 3, 1] += pixels
        (folder / where / f"{number}.png").write_bytes(picture(changed))
    rows = [{"question": "Which pet?", "answer": "cat", "image": f"{where}/{n}.png"} for n in range(12)]
    return jsonl(folder, rows)


def test_a_local_file_names_pictures_beside_it_and_a_sandboxed_worker_reads_them(tmp_path: Path) -> None:
    config = task(pets(tmp_path / "pets"), images="image", find="whole")
    here = TaskMixture([config]).question(3, 1)
    assert media_of(here.prompt)
    with closing(VerificationPool([config], VerificationSettings())) as pool:
        assert pool.draw(3, 1, 1) == [here]
        (grade,) = pool.grade([(here.ref, ["cat", "dog"])])
        assert isinstance(grade, Grade) and grade.rewards == (1.0, 0.0)
        assert pool.unprotected() == {}


def test_a_picture_that_differs_in_one_pixel_is_refused(tmp_path: Path) -> None:
    theirs = TaskMixture([task(pets(tmp_path / "theirs"), images="image")])
    mine = TaskMixture([task(pets(tmp_path / "mine", pixels=1), images="image")])
    same = TaskMixture([task(pets(tmp_path / "copy"), images="image")])
    ref = theirs.question(3, 1).ref
    refused = mine.grade(ref, ["cat"])
    assert isinstance(refused, Rejection) and refused.reason == "media_mismatch"
    assert isinstance(same.grade(ref, ["cat"]), Grade)


def test_a_row_names_no_file_outside_the_folder(tmp_path: Path) -> None:
    inside = tmp_path / "set"
    path = pets(inside)
    (tmp_path / "secret.png").write_bytes(PICTURES[0])
    os.symlink(tmp_path / "secret.png", inside / "link.png")
    os.mkfifo(inside / "pipe.png")
    assert media_of(asked(task(path, images="image")))
    for place in (
        "../secret.png",
        str(tmp_path / "secret.png"),
        "link.png",
        "/etc/hostname",
        "pictures/../../secret.png",
    ):
        with pytest.raises(TaskError, match="not in the data set's folder"):
            asked(task(jsonl(inside, [{"question": "?", "answer": "1", "image": place}]), images="image"))
    for place in ("absent.png", "pictures", "pipe.png", "a\0b", "https://example.org/1.png"):
        with pytest.raises(TaskError, match="there is no file|cannot read"):
            asked(task(jsonl(inside, [{"question": "?", "answer": "1", "image": place}]), images="image"))


def test_a_folder_of_pictures_with_their_metadata_is_a_data_set(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes(PICTURES[number])
    rows = [{"file_name": f"{n}.png", "question": f"Pet {n}?", "answer": "cat"} for n in range(3)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = DatasetSource(task(folder, images="image"))
    question = source.question(0, 0)
    row = question.ref.row  # type: ignore[union-attr]
    assert question.prompt == user(IMAGES[row], f"Pet {row}?")
    with closing(VerificationPool([task(folder, images="image")], VerificationSettings())) as pool:
        assert pool.draw(0, 0, 1) == [question]


def test_members_have_the_settings_and_only_copies_of_files(tmp_path: Path) -> None:
    path, copy = pets(tmp_path / "pets"), pets(tmp_path / "copy")
    given = task(path, images="image", max_pixels=10_000)
    (spec,) = to_specs([given])
    assert spec.settings["images"] == "image" and str(tmp_path) not in str(spec)
    assert from_specs([spec], {"rows": copy}) == (given.model_copy(update={"path": str(copy)}),)
    public = DatasetTask(kind="dataset", name="rows", path="owner/name", images="image", inline=("image",))
    assert from_specs(to_specs([public])) == (public.model_copy(update={"public": True}),)


def test_what_is_shown_is_part_of_the_options_and_nothing_else_is(tmp_path: Path) -> None:
    path = pets(tmp_path / "pets")
    plain = DatasetSource(task(path)).question(0, 0).ref.options_digest
    assert DatasetSource(task(path, max_pixels=64)).question(0, 0).ref.options_digest == plain
    config = task(path, images="image")
    ref = DatasetSource(config).question(0, 0).ref
    for changes in ({"images": None}, {"max_pixels": 64}, {"inline": ["image"]}):
        with pytest.raises(Refusal, match="options_differ"):
            DatasetSource(DatasetTask.model_validate({**config.model_dump(), **changes})).recall(ref)


def test_text_alone_imports_no_library_for_media(tmp_path: Path) -> None:
    path = jsonl(tmp_path, [{"question": "?", "answer": "1"}] * 3)
    code = (
        "import sys\nfrom swarm.environments.sources.dataset import DatasetTask\n"
        "from swarm.environments.mixture import TaskMixture\n"
        f"rows = DatasetTask(kind='dataset', name='rows', path={str(path)!r})\n"
        "mixture = TaskMixture([rows])\n"
        "mixture.question(0, 0, task='rows')\n"
        "print({'PIL', 'soundfile', 'av', 'sklearn', 'swarm.environments.decoding.pictures',"
        " 'swarm.environments.decoding.pixels'} & set(sys.modules))"
    )
    environment = {**os.environ, "USE_TORCH": "0"}
    said = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment)
    assert said.splitlines()[-1] == "set()"


def test_a_missing_library_is_named_with_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pets(tmp_path / "pets")
    for setting, library in (("images", "PIL"), ("audios", "soundfile"), ("videos", "av")):
        for name in [
            name
            for name in sys.modules
            if name.startswith(("swarm.environments.decoding.", "swarm.extras.audio_video."))
        ]:
            if name.endswith(("pictures", "sounds", "clips", "colours")):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(TaskError, match="make install-media"):
            DatasetSource(task(path, **{setting: "image"}))
