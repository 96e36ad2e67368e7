"""Episodes with calls in a model's own form, live: small models that have learned to call, between nodes of different
families."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.environments.task import PythonTask
from swarm.environments.verification.inline import InlineVerifier
from swarm.groups.building import Member, OwnGroups, with_grade
from swarm.groups.episodes import is_whole, run_episodes
from swarm.policy.loading import Policy
from swarm.sapo.mixing import MixSettings
from swarm.training.rows import RowReader
from swarm.types import Grade, GradedGroup, Past, PolicyId, Question, RolloutGroup, Sampling, Step, Text
from swarm.types.calls import Call, calls_in
from swarm.types.thoughts import answer_of
from tests.policy.test_calling import ids_of, native
from tests.thinking_models import CALLING, FAMILIES, policy_of

SAMPLING = Sampling(temperature=1.0, max_new_tokens=160)
CODE = """
from swarm.environments.task import Task

class Product(Task):
    def question(self, random):
        return "6 * 7?", "42"

    def reward(self, question, completion, reference):
        return float(completion.strip().startswith("<answer>42</answer>"))
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> PythonTask:
    file: Path = tmp_path_factory.mktemp("task") / "product.py"
    file.write_text(CODE)
    return PythonTask(kind="python", name="product", target=f"{file}:Product", tool="calculator", max_turns=3)


def taught(policy: Policy, name: str, question: Question) -> Policy:
    """A random policy that has learned one episode by heart: a call in its own form, then the answer."""
    family = CALLING[name]
    thought = f"{family.open}multiply{family.close}" if family.open or family.lead else ""
    said = native(policy, family, ("calculator", {"expression": "6 * 7"}))
    call = [*ids_of(policy, thought + said), policy._conversations.end_of_calls[0]]
    past = Past(question.prompt, (Step(tuple(call), (Text("42", "calculator"),)),))
    answer = [*ids_of(policy, f"{thought}<answer>42</answer>"), policy._conversations.end]
    prompt, before = policy.encode_prompt(question.prompt), policy.encode(past)
    ids = torch.tensor([[*before, *answer]])
    wanted = torch.zeros(ids.shape[1], dtype=torch.bool)
    wanted[len(prompt) : len(prompt) + len(call)] = wanted[len(before) :] = True
    model = policy.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(400):
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits[wanted[1:]], ids[0, 1:][wanted[1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if loss < 0.005:
            break
    model.eval()
    return policy


def played(policy: Policy, verifier: InlineVerifier, question: Question) -> GradedGroup:
    """A group that the policy's engine plays live."""
    engine = TransformersEngine(policy, GenerationSettings())
    ((_, finished),) = run_episodes(engine.stream, verifier, [question], 4, SAMPLING, 1)
    grade = finished.grading.result()
    assert isinstance(grade, Grade)
    me = Member("me", PolicyId("x", policy.tokenizer_hash, 0), SAMPLING)
    group = OwnGroups(me, None, token_ids=True).make(question.ref, finished.completions, grade.rewards)  # type: ignore[arg-type]
    return with_grade(group, grade)


@pytest.fixture(scope="module", params=["hermes", "llama", "mistral", "gemma"])
def live(request: pytest.FixtureRequest, task: PythonTask) -> Iterator[tuple[str, Policy, InlineVerifier, GradedGroup]]:
    verifier = InlineVerifier([task])
    (question,) = verifier.draw(1, 0, 1)
    policy = taught(policy_of(CALLING[request.param]), request.param, question)
    yield request.param, policy, verifier, played(policy, verifier, question)


def test_a_policy_calls_in_its_own_form_and_answers_with_the_result(
    live: tuple[str, Policy, InlineVerifier, GradedGroup],
) -> None:
    _, _, _, graded = live
    right = [index for index, reward in enumerate(graded.rewards) if reward == 1.0]
    assert len(right) >= 2, [completion.text for completion in graded.group.completions]
    for index in right:
        completion = graded.group.completions[index]
        first, last = completion.by_turn()
        (call,) = calls_in(answer_of(first.text))
        assert isinstance(call, Call) and call.name == "calculator"
        assert graded.observed(index) == ((Text("42", "calculator"),),)
        assert "<answer>42</answer>" in last.text and not calls_in(answer_of(last.text))


def test_trained_are_the_sampled_tokens_after_all_that_the_policy_read(
    live: tuple[str, Policy, InlineVerifier, GradedGroup],
) -> None:
    _, policy, _, graded = live
    reader = RowReader(policy, MixSettings(), lambda rewards: rewards)
    rows = reader.local(graded, 0)
    for row, completion, reward in zip(rows, graded.group.completions, graded.rewards, strict=True):
        assert tuple(row.completion) == completion.token_ids
        assert reader.same_tokens(completion) or reward == 0, "a bad sample may have tokens that its text does not show"
        read, start = list(row.prompt), 0
        values: list[float] = []
        for at, insert in [*((insert.after, insert) for insert in row.inserts), (len(row.completion), None)]:
            said = list(row.completion[start:at])
            with torch.no_grad():
                logits = policy.model(input_ids=torch.tensor([[*read, *said]]), use_cache=False).logits[0]
            scores = torch.log_softmax(logits[len(read) - 1 : -1].float(), dim=-1)
            values += scores.gather(1, torch.tensor(said)[:, None])[:, 0].tolist()
            read, start = [*read, *said, *(insert.ids if insert is not None else ())], at
        assert values == pytest.approx(list(completion.logprobs), abs=1e-3)


@pytest.mark.parametrize("reader", ["hermes", "llama", "mistral", "gemma", "json", "smollm2", "deepseek-r1", "gpt-oss"])
def test_a_receiver_of_another_family_replays_the_episode_with_the_same_result(
    live: tuple[str, Policy, InlineVerifier, GradedGroup], task: PythonTask, reader: str
) -> None:
    _, _, _, graded = live
    shared: RolloutGroup = OwnGroups(Member("x", graded.group.policy, SAMPLING), None, token_ids=False)._public(  # type: ignore[arg-type]
        graded.group
    )
    theirs = InlineVerifier([task])
    (grade,) = theirs.grade([(shared.question, [completion.actions for completion in shared.completions])])
    assert isinstance(grade, Grade) and grade.rewards == graded.rewards and is_whole(shared, grade)
    policy = policy_of(CALLING.get(reader) or FAMILIES[reader])
    rows = RowReader(policy, MixSettings(), lambda rewards: rewards).unweighted(with_grade(shared, grade))
    for row, completion, reward in zip(rows, shared.completions, grade.rewards, strict=True):
        if reward < 1:
            continue
        call, answer = completion.by_turn()
        (seen,) = (insert for insert in row.inserts if not insert.within)
        text = policy.tokenizer.decode(list(seen.ids), skip_special_tokens=False)
        assert "42" in text
        (again,) = calls_in(answer_of(policy.said(list(row.completion[: seen.after]))))
        if policy.calling is not None:
            assert again == calls_in(answer_of(call.text))[0]
        assert "<answer>42</answer>" in policy.said(list(row.completion[seen.after :])), answer.text
