"""vLLM without this project, for comparison: `python -m benchmarks.engine.alone SPEC`, in vLLM's Python.

SPEC is JSON: `arguments` of `vllm.LLM`, `prompts` as token ids, and for each prompt `num_completions` of at most
`max_tokens`, which end at `stop_ids`.

commands  generate (seed), quit
events    ready, generate (lengths)
"""

from __future__ import annotations

import json
import sys

from benchmarks.common.children import commands, emit


def main() -> None:
    """Generate whenever told to."""
    from vllm import LLM, SamplingParams

    spec = json.loads(sys.argv[1])
    engine = LLM(**spec["arguments"])
    prompts = [{"prompt_token_ids": ids} for ids in spec["prompts"]]
    orders = commands()
    emit("ready")
    while (order := orders.get())["do"] == "generate":
        sampling = SamplingParams(
            n=spec["num_completions"],
            max_tokens=spec["max_tokens"],
            stop_token_ids=spec["stop_ids"],
            ignore_eos=True,
            detokenize=False,
            seed=order["seed"],
        )
        answers = engine.generate(prompts, sampling, use_tqdm=False)
        emit("generate", lengths=[len(each.token_ids) for answer in answers for each in answer.outputs])


if __name__ == "__main__":
    main()
