"""Small random models of families that think, with chat templates of the structure of the published ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import JsonValue
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_config
from swarm.policy.turns import TemplateUse

HERMES_TOOLS = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}{%- if messages[0].role == 'system' %}"
    "{{- messages[0].content + '\n\n' }}{%- endif %}{{- '# Tools\n<tools>' }}"
    "{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}{{- '\n</tools><|im_end|>\n' }}{%- endif %}"
)
HERMES_CALLS = (
    "{%- for call in m.tool_calls or [] %}{%- if loop.index0 or m.content %}{{- '\n' }}{%- endif %}"
    '{{- \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}{%- endfor %}"
)
HERMES_RESULTS = (
    "{%- elif m.role == 'tool' %}{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}"
    "{%- endif %}{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}"
)
_TURNS = (
    HERMES_TOOLS + "{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}"
    "{%- set answer = m.content.split('</think>')[-1].lstrip('\n') %}"
    "{{- '<|im_start|>assistant\n' + answer }}"
    + HERMES_CALLS
    + "{{- '<|im_end|>\n' }}"
    + HERMES_RESULTS
    + "{%- elif not (tools and loop.first and m.role == 'system') %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
)
QWEN3 = _TURNS + (
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
QWEN3_THINKING = _TURNS + (
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
GENERATION = (
    "{%- for m in messages %}{%- if m.role == 'assistant' %}"
    "{{- '<|im_start|>assistant\n' }}{% generation %}{{- m.content + '<|im_end|>' }}{% endgeneration %}{{- '\n' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
DEEPSEEK = (
    "<bos>{%- for m in messages %}{%- if m.role == 'system' %}{{- m.content }}"
    "{%- elif m.role == 'user' %}{{- '<|User|>' + m.content }}"
    "{%- else %}{{- '<|Assistant|>' + m.content.split('</think>')[-1] + '<|eos|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|Assistant|><think>\n' }}{%- endif %}"
)
_MISTRAL = (
    "<bos>{%- for m in messages %}{%- if m.role == 'system' %}{{- '[SYSTEM]' + m.content + '[/SYSTEM]' }}"
    "{%- elif m.role == 'user' %}{%- if tools and loop.last or tools and messages[loop.index0 + 1].role != 'user' %}"
    "{{- '[AVAILABLE_TOOLS]' }}{{- tools | tojson }}{{- '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{{- '[INST]' + m.content + '[/INST]' }}"
    "{%- elif m.role == 'tool' %}{%- if m.tool_call_id | length != 9 %}{{- raise_exception('nine characters') }}"
    "{%- endif %}RESULT"
    "{%- elif m.tool_calls %}CALLS{{- '<|eos|>' }}"
    "{%- else %}{{- m.content.split('[/THINK]')[-1] + '<|eos|>' }}{%- endif %}{%- endfor %}"
)
MAGISTRAL = (
    _MISTRAL.replace("RESULT", "{{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}").replace(
        "CALLS",
        "{%- for call in m.tool_calls %}{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' }}"
        "{{- call.function.arguments | tojson }}{%- endfor %}",
    )
    + "{#- a system prompt asks for [THINK] and [/THINK] #}"
)
MISTRAL = _MISTRAL.replace(
    "RESULT",
    "{{- '[TOOL_RESULTS] {\"content\": ' + m.content + ', \"call_id\": \"' + m.tool_call_id + '\"}[/TOOL_RESULTS]' }}",
).replace(
    "CALLS",
    "{{- '[TOOL_CALLS] [' }}{%- for call in m.tool_calls %}{%- set out = call.function | tojson %}{{- out[:-1] }}"
    "{{- ', \"id\": \"' + call.id + '\"}' }}{{- '' if loop.last else ', ' }}{%- endfor %}{{- ']' }}",
)
GPT_OSS = (
    "{%- for m in messages %}{%- if m.role == 'assistant' %}"
    "{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}"
    "{%- else %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{%- endif %}{%- endfor %}"
    "{#- thoughts: <|channel|>analysis<|message|> #}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)
GEMMA4 = (
    "{%- macro written(value) %}{%- if value is string %}{{- '<|\"|>' + value + '<|\"|>' }}"
    "{%- elif value is mapping %}{{- '{' }}{%- for key, item in value | dictsort %}{{- key + ':' }}{{- written(item) }}"
    "{{- '' if loop.last else ',' }}{%- endfor %}{{- '}' }}"
    "{%- elif value is sequence %}{{- '[' }}{%- for item in value %}{{- written(item) }}"
    "{{- '' if loop.last else ',' }}{%- endfor %}{{- ']' }}{%- else %}{{- value | tojson }}{%- endif %}{%- endmacro %}"
    "<bos>{%- if tools %}{{- '<|turn>system\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content }}"
    "{%- endif %}{%- for tool in tools %}{{- '<|tool>declaration:' + tool.function.name }}"
    "{{- written({'description': tool.function.description, 'parameters': tool.function.parameters}) + '<tool|>' }}"
    "{%- endfor %}{{- '<turn|>\n' }}{%- endif %}"
    "{%- for m in messages %}{%- if not (tools and loop.first and m.role == 'system') %}"
    "{{- '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    "{%- for call in m.tool_calls or [] %}{%- set body = written(call.function.arguments) %}"
    "{{- '<|tool_call>call:' + call.function.name + body + '<tool_call|>' }}{%- endfor %}"
    "{%- for each in m.tool_responses or [] %}{{- '<|tool_response>response:' + each.name + '{value:' }}"
    "{{- written(each.response) + '}<tool_response|>' }}{%- endfor %}"
    "{{- m.content.split('<channel|>')[-1] }}{%- if not m.tool_responses %}{{- '<turn|>\n' }}{%- endif %}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{%- if not messages[-1].tool_responses %}{{- '<|turn>model\n' }}{%- endif %}"
    "{%- if not enable_thinking | default(false) %}{{- '<|channel>thought\n<channel|>' }}{%- endif %}{%- endif %}"
)
FUNCTION_GEMMA = (
    GEMMA4.partition("{%- if add_generation_prompt %}")[0]
    .replace('<|"|>', "<escape>")
    .replace("<|tool_call>", "<start_function_call>")
    .replace("<tool_call|>", "<end_function_call>")
    .replace("m.tool_responses or []", "[]")
    .replace("not m.tool_responses", "true")
    .replace("m.content.split('<channel|>')[-1]", "m.content")
    + "{%- if add_generation_prompt %}{{- '<|turn>model\n' }}{%- endif %}"
)
LLAMA3 = (
    "<bos>{%- set ns = namespace(first=true) %}{%- for m in messages %}"
    "{{- '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\n\n' }}"
    "{%- if m.role == 'user' and tools and ns.first %}{%- set ns.first = false %}{{- 'Respond with JSON.\n\n' }}"
    "{%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\n\n' }}{%- endfor %}{%- endif %}"
    "{%- if m.tool_calls %}{%- if m.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}"
    '{%- set call = m.tool_calls[0].function %}{{- \'{"name": "\' + call.name + \'", "parameters": \' }}'
    "{{- call.arguments | tojson }}{{- '}' }}"
    "{%- elif m.role == 'tool' %}{{- m.content | tojson }}{%- else %}{{- m.content | trim }}{%- endif %}"
    "{{- '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
PLAIN_JSON = (
    "{%- if tools %}{{- '<|im_start|>system\nTools: ' }}{{- tools | tojson }}{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- for call in m.tool_calls or [] %}{{- '' if loop.first else '\n' }}{{- call.function | tojson }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
QWEN3_CODER = (
    HERMES_TOOLS + "{%- for m in messages %}{%- if m.role == 'assistant' %}{{- '<|im_start|>assistant' }}"
    "{%- if m.content or not m.tool_calls %}{{- '\n' + m.content }}{%- endif %}"
    "{%- for call in m.tool_calls or [] %}{{- '\n<tool_call>\n<function=' + call.function.name + '>\n' }}"
    "{%- for name, value in call.function.arguments | items %}{{- '<parameter=' + name + '>\n' }}"
    "{{- value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}"
    "{{- '\n</parameter>\n' }}{%- endfor %}{{- '</function>\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}"
    + HERMES_RESULTS
    + "{%- elif not (tools and loop.first and m.role == 'system') %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
GLM = (
    "<bos>{%- if tools %}{{- '<|system|>\n# Tools\n<tools>\n' }}{%- for tool in tools %}"
    "{{- tool | tojson(ensure_ascii=False) + '\n' }}{%- endfor %}{{- '</tools>' }}{%- endif %}"
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{{- '<|assistant|>\n<think></think>' }}"
    "{%- if m.content %}{{- '\n' + m.content }}{%- endif %}"
    "{%- for call in m.tool_calls or [] %}{{- '\n<tool_call>' + call.function.name + '\n' }}"
    "{%- for name, value in call.function.arguments | items %}{{- '<arg_key>' + name + '</arg_key>\n<arg_value>' }}"
    "{{- value if value is string else value | tojson(ensure_ascii=False) }}{{- '</arg_value>\n' }}{%- endfor %}"
    "{{- '</tool_call>' }}{%- endfor %}"
    "{%- elif m.role == 'tool' %}{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- else %}{{- '<|' + m.role + '|>\n' + m.content }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\n<think></think>' }}{%- endif %}"
)
GLM_COMPACT = (
    GLM.replace("'\n<tool_call>' + call.function.name + '\n'", "'<tool_call>' + call.function.name")
    .replace("</arg_key>\n<arg_value>", "</arg_key><arg_value>")
    .replace("</arg_value>\n", "</arg_value>")
    .replace("<|assistant|>\n<think></think>", "<|assistant|></think>")
    .replace("'\n' + m.content", "m.content")
)
GEMMA2 = (
    "<bos>{%- if messages[0].role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}"
    "{%- for m in messages %}{{- '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    "{{- m.content | trim + '<turn|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|turn>model\n' }}{%- endif %}"
)
SMOLLM2 = (
    "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


class Family(NamedTuple):
    """How a family writes conversations and thoughts."""

    template: str
    end: str
    """The token that ends a turn."""
    arguments: Mapping[str, JsonValue] = {}
    open: str = ""
    """What a policy says before a thought."""
    close: str = ""
    """What it says between thought and answer."""
    lead: str = ""
    """What its prompt has of the text of a thought."""
    plain: str = ""
    """What it says before an answer without a thought."""


THINK = {"open": "<think>\n", "close": "\n</think>\n\n"}
THINKING = {
    "qwen3": Family(QWEN3, "<|im_end|>", **THINK),
    "qwen3 opened": Family(QWEN3_THINKING, "<|im_end|>", close="\n</think>\n\n", lead="<think>\n"),
    "deepseek-r1": Family(DEEPSEEK, "<|eos|>", close="\n</think>\n\n", lead="<think>\n"),
    "magistral": Family(MAGISTRAL, "<|eos|>", open="[THINK]", close="[/THINK]"),
    "gpt-oss": Family(
        GPT_OSS,
        "<|return|>",
        open="<|channel|>analysis<|message|>",
        close="<|end|><|start|>assistant<|channel|>final<|message|>",
        plain="<|channel|>final<|message|>",
    ),
    "gemma4": Family(GEMMA4, "<turn|>", {"enable_thinking": True}, open="<|channel>thought\n", close="<channel|>"),
}
SILENT = {
    "qwen3 off": Family(QWEN3, "<|im_end|>", {"enable_thinking": False}),
    "gemma4 off": Family(GEMMA4, "<turn|>"),
    "llama3": Family(LLAMA3, "<|eot_id|>"),
    "gemma2": Family(GEMMA2, "<turn|>"),
    "smollm2": Family(SMOLLM2, "<|im_end|>"),
    "generation marks": Family(GENERATION, "<|im_end|>"),
}
FAMILIES = {**THINKING, **SILENT}
CALLING = {
    "hermes": "qwen3 off",
    "qwen3": "qwen3",
    "qwen3 opened": "qwen3 opened",
    "llama": "llama3",
    "mistral": Family(MISTRAL, "<|eos|>"),
    "magistral": "magistral",
    "gemma": "gemma4",
    "gemma off": "gemma4 off",
    "function gemma": Family(FUNCTION_GEMMA, "<turn|>"),
    "qwen3 coder": Family(QWEN3_CODER, "<|im_end|>"),
    "glm": Family(GLM, "<|user|>"),
    "glm compact": Family(GLM_COMPACT, "<|user|>"),
    "json": Family(PLAIN_JSON, "<|im_end|>"),
}
CALLING = {name: FAMILIES[family] if isinstance(family, str) else family for name, family in CALLING.items()}
"""Families whose templates take tools."""
SPECIAL = [
    *("<|im_start|>", "<|im_end|>", "<bos>", "<|eos|>", "<|User|>", "<|Assistant|>", "[SYSTEM]", "[/SYSTEM]", "[INST]"),
    *("[/INST]", "[THINK]", "[/THINK]", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|turn>"),
    *("<turn|>", "<|channel>", "<channel|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<|python_tag|>", "<|eom_id|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[AVAILABLE_TOOLS]"),
    *("[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>"),
    *("<|tool_response>", "<tool_response|>", '<|"|>', "<start_function_call>", "<end_function_call>", "<escape>"),
]
SHOWN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Tokens that a decoded text shows, as those of Qwen3 and DeepSeek-R1 do."""
GLM_SPECIAL = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
GLM_SHOWN = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
"""GLM's alone: the random policies of the others stay as they are."""


def tokenizer_of(family: Family) -> PreTrainedTokenizerFast:
    """Bytes as tokens, with the marks of all families; 1 and 2 are also one token."""
    is_glm = "<arg_key>" in family.template
    shown, special = (SHOWN + GLM_SHOWN, [*SPECIAL, *GLM_SPECIAL]) if is_glm else (SHOWN, SPECIAL)
    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "12"]
    inner = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=[("1", "2")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_tokens([AddedToken(token, normalized=False) for token in shown])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=family.end, pad_token="<|eos|>", extra_special_tokens=list(special)
    )
    tokenizer.chat_template = family.template
    return tokenizer


def policy_of(
    family: Family, arguments: Mapping[str, JsonValue] | None = None, system_prompt: str | None = None
) -> Policy:
    """A random policy of the family."""
    tokenizer = tokenizer_of(family)
    used = family.arguments if arguments is None else arguments
    return Policy("thinker", model_for(tokenizer), tokenizer, system_prompt, template=TemplateUse(used))


def model_for(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A tiny random Qwen3."""
    config = tiny_config()
    config.vocab_size, config.eos_token_id = len(tokenizer), tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    config.max_position_embeddings = 1024
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config)


def write_qwen3(folder: Path, name: str = "qwen3", positions: int = 1024) -> Path:
    """A directory of a random model of Qwen3's shape, with what its publisher suggests for generation."""
    tokenizer = tokenizer_of(FAMILIES[name])
    model = model_for(tokenizer)
    model.config.max_position_embeddings = positions
    model.generation_config.update(do_sample=True, temperature=0.6, top_p=0.95, top_k=20)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
