"""Directories of models that are broken, or made to harm: a sentence each, in bounded time and memory, and no code."""

from __future__ import annotations

import json
import pickle
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from transformers.utils.chat_template_utils import render_jinja_template

from swarm.errors import ConfigError, PolicyError
from swarm.policy.config import PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.policy.turns import RENDERER, TemplateRenderer

from .test_turns import TEMPLATES, policy_with

VALUES: Mapping[str, object] = {"messages": [{"role": "user", "content": "hello"}], "add_generation_prompt": True}
TEMPLATE_ERRORS = {
    "syntax": ("{% for", "TemplateSyntaxError"),
    "undefined": ("{{ nothing.at.all }}", "UndefinedError"),
    "unsafe": ("{{ messages.__class__.__mro__ }}", "SecurityError"),
    "globals": ("{{ lipsum.__globals__['os'].popen('touch stolen') }}", "SecurityError"),
    "a builtin's class": ("{{ cycler.__init__.__globals__.os.popen('touch stolen') }}", "SecurityError"),
    "a namespace's class": ("{% set n = namespace(__class__=1) %}", "SecurityError"),
    "format": ("{{ '{0.__class__.__mro__}'.format(1) }}", "SecurityError"),
    "an import": ("{% import 'os' as os %}", "TypeError"),
    "division": ("{{ 1 // 0 }}", "ZeroDivisionError"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "nesting": ("{{" + "(" * 5_000 + ")" * 5_000 + "}}", "RecursionError"),
    "a long text": ("{{ 'a' * 10 ** 11 }}", "MemoryError"),
    "a wide number": ("{{ '%999999999999d' | format(1) }}", "Error"),
    "doubling": ("{% set n = namespace(t='a') %}{% for _ in range(50) %}{% set n.t = n.t * 2 %}{% endfor %}", "emory"),
    "long output": ("{{ 'a' * (2 ** 24 + 1) }}", "more than 16777216"),
    "loops": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "processor time"),
    "a large power": ("{{ (7 ** (7 ** 9)) % 10 }}", "processor time"),
}  # fmt: skip


@pytest.mark.parametrize("what", TEMPLATE_ERRORS)
def test_a_template_that_raises_or_takes_too_much_is_refused_in_one_line(what: str) -> None:
    template, said = TEMPLATE_ERRORS[what]
    with pytest.raises(PolicyError, match=said) as refused:
        RENDERER.render(template, VALUES)
    assert str(refused.value).startswith("the model's chat template") and str(refused.value).isprintable()
    assert RENDERER.render("{{ messages[0].content }}", VALUES) == "hello", "the next one is rendered as ever"


def test_a_hostile_template_refuses_the_model_when_it_is_loaded(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    policy.save(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE_ERRORS["globals"][0])
    with pytest.raises(PolicyError, match="chat template cannot be used: SecurityError"):
        load_policy(PolicySettings(model=str(tmp_path / "model")))
    assert not (tmp_path / "stolen").exists()


@pytest.mark.parametrize("style", TEMPLATES)
def test_templates_render_as_in_transformers(style: str) -> None:
    tokenizer = policy_with(*TEMPLATES[style]).tokenizer
    rich = tokenizer.chat_template + (
        "{% set n = namespace(self=1, count=0) %}{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}"
        "{% set n.count = n.count + 1 %}{% endfor %}{{ n.count }}{{ dict(a=[1, 'é']) | tojson(indent=1) }}"
        "{% generation %}{{ messages[-1].content }}{% endgeneration %}{{ tools is none }}{{ bos_token is defined }}"
    )
    turns = [{"role": role, "content": f" {role} é\n"} for role in ("user", "assistant", "user")]
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    theirs, _ = render_jinja_template([turns], chat_template=rich, add_generation_prompt=True, **special)
    assert RENDERER.render(rich, {**special, "messages": turns, "add_generation_prompt": True}) == theirs[0]


def test_a_killed_process_is_replaced() -> None:
    renderer = TemplateRenderer()
    assert renderer.render("{{ 1 + 1 }}", {}) == "2"
    assert renderer._process is not None
    renderer._process.kill()
    renderer._process.wait()
    assert renderer.render("{{ 1 + 1 }}", {}) == "2"
    renderer.close()


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_bytes(content) and None


def _set(name: str, **values: object) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        file = directory / name
        file.write_text(json.dumps({**json.loads(file.read_bytes()), **values}))

    return change


class Payload:
    """What it runs when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("open('stolen', 'w')",)


def _pickled(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps({"lm_head.weight": Payload()}))


def _pickled_by_torch(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Payload()}, directory / "pytorch_model.bin")


CONFIG, TOKENIZER, NAMES = "config.json", "tokenizer.json", "tokenizer_config.json"
DIRECTORIES: Mapping[str, Callable[[Path], None]] = {
    "pickled weights": _pickled,
    "weights pickled by torch": _pickled_by_torch,
    "weights that are no tensors": _write("model.safetensors", b"\xff" * 1_000),
    "empty weights": _write("model.safetensors", b""),
    "an index of nothing": _write("model.safetensors.index.json", b"[]"),
    "a configuration that is a list": _write(CONFIG, b"[]"),
    "a deep configuration": _write(CONFIG, b"[" * 200_000),
    "a configuration that is no text": _write(CONFIG, b"\xff\xfe\x00"),
    "a billion layers": _set(CONFIG, num_hidden_layers=10**9),
    "many layers": _set(CONFIG, num_hidden_layers=9_999),
    "infinite layers": _set(CONFIG, num_hidden_layers=1e400),
    "negative layers": _set(CONFIG, num_hidden_layers=-1),
    "a huge vocabulary": _set(CONFIG, vocab_size=10**12),
    "a wide model": _set(CONFIG, intermediate_size=10**7),
    "sizes of 2^62": _set(CONFIG, intermediate_size=2**62, hidden_size=2**62),
    "no heads": _set(CONFIG, num_attention_heads=0, num_key_value_heads=0),
    "sizes that are texts": _set(CONFIG, hidden_size="large"),
    "sizes that are negative": _set(CONFIG, hidden_size=-64),
    "a type that is a list": _set(CONFIG, model_type=["llama"]),
    "a type that does not exist": _set(CONFIG, model_type="../../etc"),
    "code of its own": _set(CONFIG, model_type="own", auto_map={"AutoConfig": "own.Config"}),
    "positions of nothing": _set(CONFIG, rope_parameters="none"),
    "an activation that is code": _set(CONFIG, hidden_act="os.system"),
    "end tokens that are texts": _write("generation_config.json", b'{"eos_token_id": ["a", {}]}'),
    "a tokenizer of nothing": _write(TOKENIZER, b"{}"),
    "a tokenizer that is a list": _write(TOKENIZER, b"[]"),
    "a deep tokenizer": _write(TOKENIZER, b"[" * 200_000),
    "a tokenizer that is no text": _write(TOKENIZER, b"\xff" * 100),
    "a tokenizer of an unknown kind": _write(TOKENIZER, b'{"version": "1.0", "model": {"type": "BOMB"}}'),
    "names that are a list": _write(NAMES, b"[]"),
    "an end token that is a list": _set(NAMES, eos_token=[["a"]]),
    "tokens without an id": _set(NAMES, added_tokens_decoder={"x": {"content": 5}}),
    "a template that is a number": _set(NAMES, chat_template=5),
    "templates without a default": _set(NAMES, chat_template=[{"name": "rag", "template": "x"}]),
    "a broken export": _write("swarm.json", b"{"),
    "an export without a prompt": _write("swarm.json", b'{"format": 1}'),
}
HARMLESS = {"templates without a default", "negative layers", "an index of nothing"}
"""What a library ignores; all the more must the policy work then."""


@pytest.mark.parametrize("what", DIRECTORIES)
def test_a_directory_of_a_stranger_loads_or_is_refused_in_one_line(
    what: str, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    policy.save(tmp_path / "model")
    DIRECTORIES[what](tmp_path / "model")
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
    try:
        load_policy(PolicySettings(model=str(tmp_path / "model"), device="cpu")).encode_prompt("hello")
    except (PolicyError, ConfigError) as error:
        assert "\n" not in str(error) and len(str(error)) < 1_500, error
    else:
        assert what in HARMLESS
    assert not (tmp_path / "stolen").exists(), "code ran"
    assert time.thread_time() - began < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20, "kB"
