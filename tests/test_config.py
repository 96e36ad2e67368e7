from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
import yaml

from nodes.commands.reference import config_reference
from swarm.config import NodeConfig, describe_config, load_config
from swarm.environments.config import TASKS
from swarm.environments.rewards import REWARDS
from swarm.environments.sources.dataset import DatasetTask
from swarm.errors import ConfigError
from swarm.kinds import Kinds
from swarm.net.records.identity import Identity
from swarm.types import Sampling


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_later_layers_win_and_say_so(tmp_path: Path) -> None:
    file = _file(tmp_path, "mix: {local: 1, external: 2}\nname: file\n")
    loaded = load_config(
        file,
        manifest={"mix": {"local": 7, "external": 7}, "generation": {"group_size": 6}},
        environment={"SWARM_MIX__EXTERNAL": "3", "HOME": "/"},
        command_line=[("name", "me")],
    )
    config = loaded.config
    assert (config.mix.local, config.mix.external, config.generation.group_size, config.name) == (1, 3, 6, "me")
    origins = {path: origin for path, _, origin in describe_config(loaded)}
    assert origins["mix.local"] == str(file)
    assert origins["mix.external"] == "environment"
    assert origins["generation.group_size"] == "manifest"
    assert origins["name"] == "command line"
    assert origins["mix.fill"] == "default"
    assert origins["update.learning_rate"] == "default for tiny"


def test_nodes_of_one_machine_have_names_of_their_own() -> None:
    one, two = (load_config(command_line=[("out", out)]).config for out in ("runs/peer", "elsewhere/peer-2"))
    assert one.called("12D3KooWaaaa") == "peer (aaaa)"
    assert one.called("12D3KooWbbbb") != one.called("12D3KooWaaaa"), "the same name of the directory"
    assert two.called("12D3KooWaaaa") == "peer-2 (aaaa)"
    assert load_config(command_line=[("name", "ada")]).config.called("12D3KooWaaaa") == "ada"


def test_defaults_follow_the_model() -> None:
    tiny = load_config().config
    real = load_config(command_line=[("policy.model", "some/model")]).config
    assert (tiny.generation.max_new_tokens, real.generation.max_new_tokens) == (16, 512)
    assert tiny.update.learning_rate > real.update.learning_rate
    assert (tiny.policy.device, real.policy.device) == ("cpu", "auto")


@pytest.mark.parametrize(
    ("model", "finds", "prompt"),
    [
        ("some/model", ("tags", None), None),
        ("some/model", ("boxed", "last_number"), "Answer the question in the form that it asks for."),
        ("some/model", ("boxed", None), "and </answer>. If the question asks for another form of answer, use that"),
        ("tiny", ("boxed",), None),
    ],
)
def test_the_system_prompt_asks_for_what_is_looked_for(
    model: str, finds: tuple[str | None], prompt: str | None
) -> None:
    tasks = [{"kind": "reasoning_gym", "name": f"task-{k}", "find": find} for k, find in enumerate(finds)]
    loaded = load_config(manifest={"tasks": tasks}, command_line=[("policy.model", model)])
    given = loaded.config.policy.system_prompt
    assert given is None if prompt is None else prompt in str(given)
    assert loaded.origins.get("policy.system_prompt") == (None if prompt is None else "default for the tasks' `find`")
    pairs = [("policy.model", model), ("policy.system_prompt", "")]
    assert load_config(manifest={"tasks": tasks}, command_line=pairs).config.policy.system_prompt == ""


def test_the_system_prompt_asks_for_no_tags_where_programs_are_asked_for() -> None:
    tasks = [{"kind": "code", "name": "functions", "path": "functions.jsonl"}]
    loaded = load_config(manifest={"tasks": tasks}, command_line=[("policy.model", "some/model")])
    assert "<answer>" not in str(loaded.config.policy.system_prompt)


def test_files_are_named_by_their_task(tmp_path: Path) -> None:
    expected = {"a": Path("x"), "b": Path("y")}
    assert load_config(command_line=[("files.a", "x"), ("files.b", "y")]).config.files == expected
    assert load_config(_file(tmp_path, "files: {a: z, b: y}"), None, {"SWARM_FILES__A": "x"}).config.files == expected
    assert load_config(command_line=[("files", "{a: x, b: y}")]).config.files == expected


def test_none_is_a_word_where_the_field_has_it_and_else_no_value() -> None:
    given = [("share.groups", "none"), ("mix.fill", "none"), ("rounds", "none")]
    config = load_config(command_line=given).config
    assert (config.share.groups, config.mix.fill, config.rounds) == ("none", "none", None)


def test_lists_come_as_repeated_options_or_yaml() -> None:
    pairs = [("network.bootstrap", "/ip4/1.2.3.4/tcp/1/p2p/A"), ("network.bootstrap", "/ip4/1.2.3.4/tcp/2/p2p/B")]
    assert len(load_config(command_line=pairs).config.network.bootstrap) == 2
    assert load_config(command_line=[("network.bootstrap", "[a, b]")]).config.network.bootstrap == ("a", "b")
    assert load_config(command_line=[("rounds", "null")]).config.rounds is None
    workers = [Identity.generate().peer_id for _ in range(2)]
    named = [("learner.workers", each) for each in workers]
    assert load_config(command_line=named).config.learner.workers == tuple(workers), "a list or nothing"
    assert load_config(command_line=[*named, ("learner.workers", "null")]).config.learner.workers is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mix: {local: -1}", "mix.local (from {file}, line 1): must be at least 0, got -1"),
        ("mix: {lokal: 1}", "mix.lokal (from {file}, line 1): there is no such field; did you mean mix.local?"),
        ("name: me\n\nmx:\n  local: 3\n", "mx (from {file}, line 3): there is no such field; did you mean mix?"),
        (
            "tasks:\n- {kind: reasoning_gym, name: gcd}\n- kind: dataset\n  name: a\n  path: a/b\n  answer_patern: x\n",
            "task a: answer_patern (from {file}, line 6): there is no such field; did you mean answer_pattern?",
        ),
        ("evaluation:\n  suites:\n    mine:\n      question: 3\n", "line 4): there is no such field; did you mean"),
        ("update: {objective: rloo}", "line 1): rloo goes with any objective: update.advantage rloo"),
        ("update: {objective: icepop}", "line 1): icepop goes with any objective: update.importance token_mask"),
        (
            "update: {objective: cispo, loss: {dual_clip: 3}}",
            "cispo has no dual_clip, only clip_low, clip_high",
        ),
        ("name: a\nmix: {local: 1}\nname: b\n", "configuration {file}, line 3: name is given twice"),
        ("name: a\n  b: c\n", "configuration {file} is not valid YAML: line 2, column 4: mapping values"),
        ("mix: {local: 0, external: 0}", "nothing would ever be trained on"),
        (
            "{mix: {local: 9}, generation: {questions_per_round: 8}}",
            "mix.local must be at most generation.questions_per_round, got 9 > 8",
        ),
        (
            "generation: {temperature: hot}",
            "generation.temperature (from {file}, line 1): must be a number",
        ),
        ("update: {betas: [0.9, 1.5]}", "betas must be in [0, 1)"),
        ("tasks: []", "tasks (from {file}, line 1)"),
        ("tasks: [{kind: reasoning_gym, name: gcd}, {kind: reasoning_gym, name: gcd}]", "gcd more than once"),
        ("tasks: [{kind: quiz, name: gcd}]", "task gcd (from {file}, line 1): must be one of"),
        ("tasks: [{kind: dataset, path: a/b}]", "tasks.0.name (from {file}, line 1): is missing"),
        (
            f"mix: {'[' * 5_000}{']' * 5_000}",
            "is not valid YAML: its lists or mappings are nested too deep",
        ),
        ("- a list", "must be a mapping"),
        ("mix: {local: [", "not valid YAML"),
    ],
)
def test_a_wrong_file_is_one_clear_message(tmp_path: Path, text: str, message: str) -> None:
    file = _file(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert message.format(file=file) in str(caught.value)


def test_a_wrong_task_is_not_also_a_list_that_is_too_short(tmp_path: Path) -> None:
    file = _file(tmp_path, "tasks:\n- {kind: reasoning_gym, name: gcd, find: words}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"task gcd: find (from {file}, line 2): ")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("mix.locl", "did you mean mix.local?"),
        ("mix", "name one of them"),
        ("name.first", "name has no fields"),
        ("files.a.b", "files has no fields"),
        ("tasks.0.kind", "tasks is a list"),
        ("nonsense", "no such field"),
    ],
)
def test_a_wrong_option_names_the_field(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match="command line") as caught:
        load_config(command_line=[(path, "1")])
    assert message in str(caught.value)


def test_asking_on_is_refused_where_generation_runs_ahead() -> None:
    def load(seconds: str, staleness: str) -> None:
        load_config(
            command_line=[("generation.ask_on_s", seconds), ("generation.max_staleness", staleness)],
        )

    load("5", "0")
    load("0", "2")
    with pytest.raises(ConfigError, match="ask_on_s must be 0 with max_staleness above 0, got 5 and 2"):
        load("5", "2")


def test_a_thought_is_shorter_than_its_completion() -> None:
    thoughts = [("policy.model", "an/other"), ("generation.max_thinking_tokens", "600")]
    load_config(command_line=thoughts)  # a model that thinks has a longer default
    load_config(command_line=[*thoughts, ("generation.max_new_tokens", "601")])
    with pytest.raises(ConfigError, match="max_thinking_tokens must be below max_new_tokens 600, got 600"):
        load_config(command_line=[*thoughts, ("generation.max_new_tokens", "600")])


def test_a_reference_that_nothing_would_use_is_refused() -> None:
    load_config(command_line=[("update.reference", "best"), ("update.reference_kl", "0.1")])
    with pytest.raises(ConfigError, match="reference best needs reference_kl above 0"):
        load_config(command_line=[("update.reference", "best")])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 2e6),
        ("stop", ["x"] * 65),
        ("stop", ["x" * 257]),
        ("stop", [""]),
        ("stop_tokens", ["x"] * 65),
    ],
)
def test_what_members_would_refuse_to_read_is_refused_at_home(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"generation.{field}"):
        load_config(None, {"generation": {field: value}})
    sampling = load_config(None, {"generation": {"temperature": 1e6, "stop": ["x" * 256] * 64}}).config.generation
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sampling.sampling()), type=Sampling) == sampling.sampling()


def test_a_misspelt_variable_is_noticed() -> None:
    with pytest.raises(ConfigError, match=r"mix\.locl \(from the variable SWARM_MIX__LOCL\).*mix\.local"):
        load_config(environment={"SWARM_MIX__LOCL": "1"})
    load_config(environment={"SWARM_TEST_VLLM_PYTHON": "python"})  # a test's, none of a node's


def test_variables_that_kubernetes_and_docker_set_for_a_service_are_passed_over() -> None:
    told = {
        "SWARM_SERVICE_HOST": "10.0.0.1",
        "SWARM_SERVICE_PORT": "4001",
        "SWARM_SERVICE_PORT_P2P": "4001",
        "SWARM_PORT": "tcp://10.0.0.1:4001",
        "SWARM_PORT_4001_TCP": "tcp://10.0.0.1:4001",
        "SWARM_PORT_4001_TCP_PROTO": "tcp",
        "SWARM_PORT_4001_TCP_PORT": "4001",
        "SWARM_PORT_4001_UDP_ADDR": "10.0.0.1",
        "SWARM_BOOTSTRAP_SERVICE_HOST": "10.0.0.2",
        "SWARM_BOOTSTRAP_0_PORT": "udp://10.0.0.2:1",
        "SWARM_TELEMETRY__PROMETHEUS_PORT": "9100",
    }
    assert load_config(environment=told).config.telemetry.prometheus_port == 9100
    for name, value in (("SWARM_PORT", "4001"), ("SWARM_NETWORK__PORT", "1"), ("SWARM_SERVICE", "x")):
        with pytest.raises(ConfigError, match=f"from the variable {name}"):
            load_config(environment={name: value})


def test_text_is_what_is_written_where_yaml_makes_something_else_of_it(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "network: {relay: off, nat_port_map: off}\nrun_name: 007\nname: no\nout: 2024\npolicy: {model: 1.10}\n"
        "tasks: [{kind: dataset, name: on, path: x.jsonl, answer: y, choices: [yes, no], choice_labels: [on, off]}]"
    )
    config = load_config(file).config
    assert (config.network.relay, config.network.nat_port_map, config.run_name) == ("off", False, "007")
    assert (config.name, config.out, config.policy.model) == ("no", Path("2024"), "1.10")
    (task,) = config.tasks
    assert isinstance(task, DatasetTask) and (task.name, task.choices) == ("on", ("yes", "no"))
    assert task.choice_labels == ("on", "off") and task.answer == "y"
    file.write_text("network: {relay: no}\n")
    with pytest.raises(ConfigError, match="must be 'auto', 'always' or 'off', got 'no'"):
        load_config(file)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("generation.max_new_tokens: 3", "in a file it is written generation: {max_new_tokens: ...}"),
        ("network.safety.groups_per_min: 3", "network: {safety: {groups_per_min: ...}}"),
        ("network: {safety.groups_per_min: 3}", "safety: {groups_per_min: ...}"),
    ],
)
def test_a_dotted_name_in_a_file_is_shown_nested(text: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path / "c.yaml")
    assert "line 1): there is no such field" in str(error.value) and hint in str(error.value)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("hello", "must look like /ip4/HOST/tcp/PORT"),
        ("", "must look like"),
        ("1.2.3.4:4001", "must look like"),
        ("/ip4/1.2.3.4", "must look like"),
        ("/ip4/1.2.3.4/tcp/", "must look like"),
        ("/ip4/1.2.3.4/tcp/4001x", "must look like"),
        ("/ip4/1.2.3.400/tcp/4001", "Octet 400"),
        ("/ip6/1.2.3.4/tcp/4001", "must look like"),
        ("/ip6/fe80::1%$(reboot)/tcp/4001", "must look like"),
        ("/dns4/a b/tcp/4001", "must look like"),
        ("/ip4/1.2.3.4/tcp/70000", "with a port from 1 to 65535"),
        ("/ip4/1.2.3.4/tcp/0", "with a port from 1 to 65535"),
        ("/ip4/1.2.3.4/tcp/4001/p2p/12D3KooWGCbBTp9k7ATK3rj3LNKmH2exQC2hcrABvjWr6titaB18", "without /p2p/PEER_ID"),
        ("/ip4/1.2.3.4/tcp/4001/rubbish", "must look like"),
    ],
)
def test_garbage_that_is_to_be_announced_is_refused(address: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(command_line=[("network.announce", json.dumps([address]))])
    assert "an address in announce" in str(error.value) and problem in str(error.value)


@pytest.mark.parametrize("field", ["teach.students", "learner.workers", "learn_from", "trusted"])
def test_who_is_named_must_be_a_peer(field: str) -> None:
    for wrong in ("12D3KooWaaaa", f"{Identity.generate().peer_id} ", f"/p2p/{Identity.generate().peer_id}"):
        with pytest.raises(ConfigError, match=rf"(?s){field}.*peer id"):
            load_config(command_line=[(field, json.dumps([wrong]))])
    load_config(command_line=[(field, json.dumps([Identity.generate().peer_id]))])


def test_addresses_of_all_kinds_are_announced() -> None:
    addresses = [
        "/ip4/1.2.3.4/tcp/4001",
        "/ip6/2001:db8::1/tcp/4001",
        "/dns4/a-b.example./tcp/1",
        "/dns/x/udp/9/quic-v1",
    ]
    config = load_config(command_line=[("network.announce", json.dumps(addresses))]).config
    assert config.network.announce == tuple(addresses)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_config(tmp_path / "nowhere.yaml")


def test_what_show_prints_is_a_configuration_again() -> None:
    rows = describe_config(load_config(command_line=[("mix.local", "3")]))
    values: dict[str, object] = {}
    for path, text, _ in rows:
        level = values
        *parents, leaf = path.split(".")
        for parent in parents:
            level = level.setdefault(parent, {})
        level[leaf] = yaml.safe_load(text)
    assert NodeConfig.model_validate(values) == load_config(command_line=[("mix.local", "3")]).config


@pytest.fixture(scope="module")
def reference() -> str:
    """Made once: that takes seconds."""
    return config_reference()


def test_every_field_is_explained_in_the_reference(reference: str) -> None:
    for name in ("external_old_logprobs", "max_share_per_peer", "answer_pattern", "nat_port_map"):
        assert f"`{name}`" in reference
    shipped = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text().split("\n## ")
    here = [section for section in shipped if not _is_of_a_missing_extra(section)]
    assert "\n## ".join(here) == reference, "run: swarm config reference > docs/configuration.md"


def _is_of_a_missing_extra(section: str) -> bool:
    item = re.match(r"An item of `(tasks|rewards)` with `kind: (\w+)`", section)
    kinds: Kinds[type] = REWARDS if item and item[1] == "rewards" else TASKS
    return item is not None and kinds.is_built_in(item[2]) and item[2] not in kinds


@pytest.mark.parametrize(("kind", "default"), [("reasoning_gym", "0.99"), ("dataset", "null"), ("python", "null")])
def test_what_a_task_s_score_becomes_is_explained_with_the_default_of_its_kind(
    kind: str, default: str, reference: str
) -> None:
    _, _, section = reference.partition(f"An item of `tasks` with `kind: {kind}`")
    assert f"| `reward.threshold` | `{default}` |" in section.partition("\n## ")[0]


@pytest.mark.parametrize(
    ("values", "on_cpu", "on_gpu"),
    [
        ({}, 8, 32),
        ({"mix.local": "40"}, 40, 40),
        ({"generation.group_size": "256"}, 8, 8),
        ({"generation.questions_per_round": "5"}, 5, 5),
    ],
    ids=str,
)
def test_a_gpu_samples_256_completions_a_round_by_default(values: dict[str, str], on_cpu: int, on_gpu: int) -> None:
    config = load_config(command_line=list(values.items())).config
    assert (config.num_questions("cpu"), config.num_questions("cuda")) == (on_cpu, on_gpu)


@pytest.mark.parametrize("text", ["[2001-99-99]", "[!!int x]", "[" * 3_000, "{a: !!bool maybe}"], ids=range(4))
def test_yaml_that_fails_in_python_is_refused_in_words(text: str) -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(command_line=[("tasks", text)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{a: &x {b: *x}}", "an alias makes a value part of itself"),
        ('{"a": 1, "a": 2}', "a is given twice; only the last would count"),
        (r'{"a": "\ud800"}', r"\ud800 (from command line) is no text: it has half of a character"),
    ],
)
def test_values_of_the_command_line_are_refused_as_those_of_files_are(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_config(command_line=[("generation.vllm.arguments", text)])
    file = tmp_path / "run.yaml"
    file.write_text(f"generation: {{vllm: {{arguments: {text}}}}}")
    with pytest.raises(ConfigError):
        load_config(file)


def test_aliases_that_name_a_value_many_times_take_no_time(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x]", *(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 30))]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="no such field|a0"):
        load_config(tmp_path / "bomb.yaml")


@pytest.mark.parametrize(
    ("task", "asks_for_tags"),
    [
        ({"kind": "shapes"}, True),
        ({"kind": "shapes", "find": "last_number"}, False),
        ({"kind": "number_guessing"}, False),
        ({"kind": "maze"}, False),
    ],
)
def test_the_default_prompt_asks_for_tags_where_questions_made_here_are_answered_in_them(
    task: dict[str, str], asks_for_tags: bool, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"policy": {"model": "some/model"}, "tasks": [task]}))
    prompt = load_config(file).config.policy.system_prompt
    assert (prompt is None) == asks_for_tags


@pytest.mark.parametrize(
    ("update", "got"),
    [
        ({"objective": "gspo"}, "update.objective gspo"),
        ({"objective": "gepo"}, "update.objective gepo"),
        ({"loss": {"positive_only": True}}, "update.loss.positive_only"),
    ],
)
def test_nobody_learns_from_a_teacher_with_an_objective_that_ignores_tokens(
    update: dict[str, object], got: str
) -> None:
    manifest = {"update": update}
    load_config(manifest=manifest)
    with pytest.raises(ConfigError, match=rf"learn_from needs an objective .* got {got}: "):
        load_config(manifest={**manifest, "learn_from": [Identity.generate().peer_id]})
