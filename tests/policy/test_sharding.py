"""Two processes share one policy: what they learn, and what they write, is what one process would."""

from __future__ import annotations

import json
import os
import socket
from itertools import product
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from nodes.simulation.children import start_function
from swarm.algorithms.losses import LOSSES
from swarm.engines.base import SharedEngine
from swarm.engines.choice import EngineChoice, open_engine
from swarm.engines.config import GenerationSettings, VllmSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.errors import PolicyError
from swarm.extras.learner.updater import StreamedUpdater
from swarm.policy.adapters import Adapters
from swarm.policy.config import LoraSettings, PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.policy.ranks import Ranks, ShardedRanks, open_ranks
from swarm.policy.tiny import tiny_config, tiny_tokenizer
from swarm.sapo.mixing import MixSettings
from swarm.telemetry.ledger import Ledger
from swarm.training.checkpoint import MODEL, OPTIMIZER, CheckpointStore, TrainingState, restore, snapshot
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import GradedGroup, Sampling
from tests import readers
from tests.example_groups import rollout_group
from tests.extras.learner.snapshot_files import unpacked
from tests.extras.vllm.stand_in import python_with_vllm
from tests.policy.completions import completion_logprobs

NUM_RANKS = 2
MAX_GRAD_NORM = 0.02
STEPS: dict[str, object] = {
    "learning_rate": 1e-3,
    "epochs": 2,
    "minibatches": 2,
    "micro_batch_tokens": 100,
    "max_grad_norm": MAX_GRAD_NORM,
}
CONSTANTS = {"dr_grpo": {"max_completion_tokens": 64}}
CASES: dict[str, tuple[dict[str, object], LoraSettings]] = {
    **{
        f"{objective}, KL {kl}": (
            {**STEPS, "objective": objective, "behaviour_kl": kl, "loss": CONSTANTS.get(objective, {})},
            LoraSettings(),
        )
        for objective, kl in product(LOSSES, (0.0, 0.1))
        if kl == 0 or objective == "gepo"
    },
    "LoRA": ({**STEPS, "reference_kl": 0.1}, LoraSettings(rank=4)),
    "reference": ({**STEPS, "reference_kl": 0.1, "importance": "token_truncate"}, LoraSettings()),
    "packed": ({**STEPS, "batching": "packed"}, LoraSettings()),
    "checkpointed": ({**STEPS, "gradient_checkpointing": True}, LoraSettings()),
}
TEXTS = ("<answer>19</answer>", "19", "3", "a rather long completion that is wrong, and goes on for some time")


def _groups() -> tuple[list[GradedGroup], list[GradedGroup]]:
    groups = [
        GradedGroup(rollout_group(index=k, texts=(*TEXTS[k:], *TEXTS[:k])), f"Calculate {k} + 7.", (1.0, 0.0, 0.5, 0.0))
        for k in range(3)
    ]
    return [], groups


def _updater(policy: Policy, settings: dict[str, object]) -> PolicyUpdater:
    """With a divergence from a reference, that is another random model, or the policy without its adapters."""
    wanted = "reference_kl" in settings and policy.adapters is None
    reference = _random(policy.ranks.for_another(), seed=1) if wanted else None
    return PolicyUpdater(policy, UpdateSettings(**settings), MixSettings(external_negative_weight=0.25), 1.0, reference)


def _random(ranks: Ranks, seed: int) -> Policy:
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(tiny_config()).double()
    ranks.place(model, torch.device("cpu"))
    return Policy("random", model, tiny_tokenizer(), None, ranks=ranks)


def _load(base: Path, lora: LoraSettings, ranks: Ranks, weights: Path | None = None) -> Policy:
    """In float64, as far as the model's code goes; the optimizer's first steps blow up what float32 rounds."""
    adapted = lora.rank > 0
    model = AutoModelForCausalLM.from_pretrained(weights if weights and not adapted else base, dtype=torch.float64)
    adapters = Adapters(model, lora) if adapted else None
    if adapters and weights:
        adapters.load(weights)
    ranks.place(model, torch.device("cpu"))
    return Policy("random", model, tiny_tokenizer(), None, adapters=adapters, ranks=ranks)


def _learn(updater: PolicyUpdater, times: int) -> list[tuple[float, ...]]:
    reports = [updater.update(*_groups()) for _ in range(times)]
    names = ("loss", "grad_norm", "clip_ratio/region_mean", "sampling/ess")
    return [tuple(report.figures[name] for name in names) for report in reports]


def _state() -> TrainingState:
    return TrainingState("12D3", "base", 1, 2, 8, [], Ledger().snapshot(), 99)


def _name(case: str) -> str:
    return case.replace(" ", "").replace(",", "-")


def _train(base: Path, out: Path, ranks: Ranks) -> None:
    """Every case: an update, a checkpoint, one more update; then the same from the checkpoint of one process."""
    for case, (settings, lora) in CASES.items():
        policy = _load(base, lora, ranks)
        updater = _updater(policy, settings)
        figures = _learn(updater, 1)
        if ranks.rank == 0:
            CheckpointStore(out / _name(case)).save(policy, updater, _state(), "{}")
        else:
            snapshot(policy, updater)
        figures += _learn(updater, 1)
        weights, _ = snapshot(policy, updater)
        if ranks.rank == 0:
            (out / f"{_name(case)}.json").write_text(json.dumps(figures))
            torch.save(weights, out / f"{_name(case)}.pt")


def _resume(base: Path, checkpoints: Path, out: Path, ranks: Ranks) -> None:
    for case in ("grpo, KL 0.0", "LoRA"):
        settings, lora = CASES[case]
        path = CheckpointStore(checkpoints / _name(case)).newest()
        assert path
        policy = _load(base, lora, ranks, path / MODEL)
        updater = _updater(policy, settings)
        restore(path, updater)
        _learn(updater, 1)
        weights, _ = snapshot(policy, updater)
        if ranks.rank == 0:
            torch.save(weights, out / f"{_name(case)}-resumed.pt")


def _generate(base: Path, out: Path, ranks: Ranks) -> None:
    policy = _load(base, LoraSettings(), ranks)
    engine = SharedEngine(TransformersEngine(policy, GenerationSettings()), policy)
    prompts = [f"Calculate {k} + 1." for k in range(5)]
    answers = engine.generate(prompts, 2, Sampling(max_new_tokens=6), seed=3)
    updater = _updater(policy, {"learning_rate": 1e-3})
    updater.update(*_groups())  # gathering for generation leaves nothing behind
    weights, _ = snapshot(policy, updater)
    if ranks.rank == 0:
        torch.save(weights, out / "generated.pt")
        ids = [[(c.token_ids, c.logprobs) for c in group] for group in answers]
        (out / "answers.json").write_text(json.dumps(ids))


def _stream(base: Path, out: Path, ranks: Ranks) -> None:
    """A learner's update: two minibatches from groups that come one by one, its snapshot, and an abandoned one."""
    policy = _load(base, LoraSettings(), ranks)
    settings = UpdateSettings(**{**STEPS, "reference_kl": 0.0})
    updater = StreamedUpdater(policy, settings, MixSettings(external_negative_weight=0.25), Sampling())
    groups = [_sampled(policy, group) for group in _groups()[1]]
    for group in groups:
        updater.accumulate([group])
    updater.apply()
    updater.accumulate(groups[:1])
    updater.abandon()
    updater.snapshot(out / f"snapshot-{ranks.rank}")
    if ranks.rank == 0:
        (out / "snapshot-0").rename(out / "snapshot")
    else:
        assert not (out / f"snapshot-{ranks.rank}").exists()


def _sampled(policy: Policy, group: GradedGroup) -> GradedGroup:
    """With token ids and log-probabilities that a worker might have sent."""
    completions = []
    for index, completion in enumerate(group.group.completions):
        (ids,) = policy.encode_completions([completion])
        completions.append(replace(completion, token_ids=tuple(ids), logprobs=(-0.5 - 0.1 * index,) * len(ids)))
    return replace(group, group=replace(group.group, completions=tuple(completions)))


def _see(pictures: Path, out: Path, ranks: Ranks) -> None:
    """Answers to questions with a picture each, and an update on them."""
    policy = load_policy(PolicySettings(model=str(pictures), dtype="float32", system_prompt=""), ranks=ranks)
    questions = [readers.question("qwen3_vl", number) for number in range(3)]
    engine = SharedEngine(TransformersEngine(policy, GenerationSettings()), policy)
    answers = engine.generate(questions, 2, Sampling(max_new_tokens=6), seed=3)
    updater = PolicyUpdater(
        policy, UpdateSettings(max_grad_norm=MAX_GRAD_NORM), MixSettings(external_negative_weight=0.25), 1.0
    )
    groups = [
        GradedGroup(rollout_group(index=k, texts=TEXTS), question, (1.0, 0.0, 0.5, 0.0))
        for k, question in enumerate(questions)
    ]
    figures = updater.update([], groups).figures
    if ranks.rank == 0:
        ids = [[(c.token_ids, c.logprobs) for c in group] for group in answers]
        found = {"answers": ids, "loss": figures["loss"], "grad_norm": figures["grad_norm"]}
        (out / "seen.json").write_text(json.dumps(found))


def _generate_with_vllm(base: Path, python: Path, out: Path, ranks: Ranks) -> None:
    """Before and after an update, with a stand-in for vLLM beside each process."""
    policy = _load(base, LoraSettings(), ranks)
    script = out / f"vllm-{ranks.rank}"
    script.mkdir()
    os.environ["VLLM_FAKE"] = str(script)
    settings = GenerationSettings(vllm=VllmSettings(python=python))
    engine = open_engine(EngineChoice("vllm", "asked for"), policy, PolicySettings(), settings)
    shared = SharedEngine(engine, policy)
    prompts = [f"Calculate {k} + 1." for k in range(5)]
    updater = _updater(policy, {"learning_rate": 1e-3})
    answers = [shared.generate(prompts, 2, Sampling(max_new_tokens=6), seed=3)]
    updater.update(*_groups())
    answers.append(shared.generate(prompts, 2, Sampling(max_new_tokens=6), seed=4))
    engine.close()
    weights, _ = snapshot(policy, updater)
    if ranks.rank == 0:
        torch.save(weights, out / "vllm.pt")
        (out / "vllm.json").write_text(json.dumps([[len(group) for group in each] for each in answers]))


def _one_of_several(rank: int, port: int, base: Path, pictures: Path, python: Path, alone: Path, out: Path) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        TORCHELASTIC_RUN_ID="test",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(NUM_RANKS),
    )
    with open_ranks() as ranks:
        assert ranks.size == NUM_RANKS
        _train(base, out, ranks)
        _resume(base, alone, out, ranks)
        _generate(base, out, ranks)
        _stream(base, out, ranks)
        _see(pictures, out, ranks)
        _generate_with_vllm(base, python, out, ranks)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The model, what one process made of it, and what two did."""
    root = tmp_path_factory.mktemp("sharding")
    pictures = readers.directory("qwen3_vl", root / "pictures")
    base, alone, together = root / "base", root / "alone", root / "together"
    alone.mkdir()
    together.mkdir()
    _random(Ranks(), seed=0).save(base)
    _train(base, alone, Ranks())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = port, base, pictures, python_with_vllm(root), alone, together
    ranks = [start_function(_one_of_several, rank, *arguments) for rank in range(NUM_RANKS)]
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0] * NUM_RANKS
    _resume(base, together, alone, Ranks())
    _generate(base, alone, Ranks())
    _stream(base, alone, Ranks())
    _see(pictures, alone, Ranks())
    return base, alone, together


def _assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(
            value, theirs[name], atol=1e-5, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes_learn_what_one_does(results: tuple[Path, Path, Path], case: str) -> None:
    _, alone, together = results
    _assert_same(*(torch.load(folder / f"{_name(case)}.pt") for folder in (together, alone)))
    ours, theirs = (json.loads((folder / f"{_name(case)}.json").read_text()) for folder in (together, alone))
    for report, expected in zip(ours, theirs, strict=True):
        assert report == pytest.approx(expected, abs=1e-6)
    assert all(grad_norm > MAX_GRAD_NORM for _, grad_norm, _, _ in theirs), "the gradient was clipped"


@pytest.mark.slow
@pytest.mark.parametrize("case", ["grpo, KL 0.0", "LoRA"])
def test_checkpoints_go_on_whoever_wrote_them(results: tuple[Path, Path, Path], case: str) -> None:
    _, alone, together = results
    unbroken = torch.load(alone / f"{_name(case)}.pt")
    for folder in (together, alone):  # each has gone on from the other's
        _assert_same(torch.load(folder / f"{_name(case)}-resumed.pt"), unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["grpo, KL 0.0", "LoRA"])
def test_checkpoints_are_the_same_files(results: tuple[Path, Path, Path], case: str) -> None:
    ours, theirs = (CheckpointStore(folder / _name(case)).newest() for folder in results[1:])
    assert ours
    assert theirs
    assert {p.relative_to(ours) for p in ours.rglob("*")} == {p.relative_to(theirs) for p in theirs.rglob("*")}
    for file in ours.rglob("*.safetensors"):
        with safe_open(file, "pt") as one, safe_open(theirs / file.relative_to(ours), "pt") as other:
            assert one.keys() == other.keys()
            assert one.metadata() == other.metadata()
    ours_state, theirs_state = (torch.load(path / OPTIMIZER) for path in (ours, theirs))
    assert ours_state["param_groups"] == theirs_state["param_groups"]
    for i, entry in ours_state["state"].items():
        _assert_same(entry, theirs_state["state"][i])


@pytest.mark.slow
def test_all_ranks_generate_and_can_train_afterwards(results: tuple[Path, Path, Path]) -> None:
    _, alone, together = results
    _assert_same(*(torch.load(folder / "generated.pt") for folder in (together, alone)))
    answers = json.loads((together / "answers.json").read_text())
    assert [len(group) for group in answers] == [2] * 5
    assert all(len(ids) == len(logprobs) > 0 for group in answers for ids, logprobs in group)
    assert len({json.dumps(group) for group in answers}) == 5, "no two ranks sample alike"


@pytest.mark.slow
def test_a_learners_update_and_snapshot_are_those_of_one_process(results: tuple[Path, Path, Path]) -> None:
    base, alone, together = results
    ours, theirs = (unpacked((folder / "snapshot").read_bytes()) for folder in (together, alone))
    _assert_same(ours, theirs)
    before = load_file(base / "model.safetensors")
    assert any(not torch.equal(value, before[name]) for name, value in ours.items() if name in before)


@pytest.mark.slow
def test_each_process_reads_the_pictures_of_its_own_rows(results: tuple[Path, Path, Path]) -> None:
    base, alone, together = results
    ours, theirs = (json.loads((folder / "seen.json").read_text()) for folder in (together, alone))
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
    policy = load_policy(PolicySettings(model=str(base.parent / "pictures"), dtype="float32", system_prompt=""))
    for number, group in enumerate(ours["answers"]):
        prompt = policy.encode_prompt(readers.question("qwen3_vl", number))
        found = completion_logprobs(policy, [prompt] * len(group), [ids for ids, _ in group], 1.0)
        for logprobs, (_, recorded) in zip(found, group, strict=True):
            assert logprobs.tolist() == pytest.approx(recorded, abs=1e-4)


@pytest.mark.slow
def test_each_process_has_a_vllm_that_gets_all_weights(results: tuple[Path, Path, Path]) -> None:
    _, _, together = results
    assert json.loads((together / "vllm.json").read_text()) == [[2] * 5] * 2
    expected = torch.load(together / "vllm.pt")
    for rank in range(NUM_RANKS):
        _assert_same(load_file(together / f"vllm-{rank}" / "weights.safetensors"), expected)


def test_an_encoder_that_is_trained_is_refused(tmp_path: Path) -> None:
    policy = readers.load("qwen3_vl", tmp_path, encoder="trained")
    ranks = ShardedRanks.__new__(ShardedRanks)
    with pytest.raises(PolicyError, match="must be frozen with several processes"):
        ranks.place(policy.model, torch.device("cpu"))


def test_rows_are_divided_evenly_and_without_loss() -> None:
    lengths = [5, 90, 3, 40, 41, 7, 7, 100]
    shares = []
    for rank in range(3):
        ranks = ShardedRanks.__new__(ShardedRanks)  # needs no process group for this
        ranks.rank, ranks.size = rank, 3
        shares.append(ranks.share(lengths))
    assert sorted(i for share in shares for i in share) == list(range(len(lengths)))
    loads = [sum(lengths[i] for i in share) for share in shares]
    assert max(loads) - min(loads) <= 10
    assert Ranks().share(lengths) == list(range(len(lengths)))
