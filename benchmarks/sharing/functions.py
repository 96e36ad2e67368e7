"""Writes one-line functions of numbers, texts and lists for the task kind `code`, each with assertions, as JSONL:

python -m benchmarks.sharing.functions functions.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

NUMBER = ("n", ((4,), (7,), (-3,), (12,)))
PAIR = ("a, b", ((3, 9), (8, 2), (-1, 5)))
TEXT = ("s", (("banana",), ("Hello World",), ("xyz",)))
LIST = ("items", (([3, 1, 2, 5],), ([7, -4, 9, 9, 0],), ([10, 20, 30],)))
"""The names of a function's arguments, and what it is called with."""
FUNCTIONS = (
    (NUMBER, "n plus K", "n + K", (2, 4, 5, 7, 10, 13, 20, 100)),
    (NUMBER, "n minus K", "n - K", (1, 3, 6, 8, 9, 15, 50)),
    (NUMBER, "n multiplied by K", "n * K", (3, 4, 5, 6, 9, 11, 12)),
    (NUMBER, "n divided by K, rounded down", "n // K", (2, 3, 4, 5, 10)),
    (NUMBER, "the remainder of n divided by K", "n % K", (2, 3, 5, 6, 7, 10)),
    (NUMBER, "n to the power of K", "n ** K", (2, 3, 4, 5)),
    (NUMBER, "True if n is greater than K, else False", "n > K", (0, 2, 5, 8, 10)),
    (NUMBER, "True if n is less than K, else False", "n < K", (0, 3, 5, 9, 10)),
    (NUMBER, "True if n is divisible by K, else False", "n % K == 0", (2, 3, 4, 6, 7)),
    (NUMBER, "the larger one of n and K", "max(n, K)", (0, 1, 5, 8, 10)),
    (NUMBER, "the smaller one of n and K", "min(n, K)", (0, 1, 5, 8, 10)),
    (NUMBER, "K minus n", "K - n", (1, 5, 10, 20, 100)),
    (NUMBER, "twice n, plus K", "2 * n + K", (1, 2, 3, 5, 8)),
    (NUMBER, "the square of n, minus K", "n * n - K", (1, 2, 4, 5, 9)),
    (NUMBER, "the text of n, repeated K times", "str(n) * K", (2, 3)),
    (PAIR, "the sum of a and b, plus K", "a + b + K", (1, 2, 4, 8, 10)),
    (PAIR, "the product of a and b, plus K", "a * b + K", (1, 5)),
    (PAIR, "a minus b, multiplied by K", "(a - b) * K", (2, 3, 10)),
    (PAIR, "True if the sum of a and b is greater than K, else False", "a + b > K", (5, 10)),
    (PAIR, "K times a, plus b", "K * a + b", (2, 3, 4, 5, 10)),
    (TEXT, "the text s repeated K times", "s * K", (2, 3, 4, 5, 6)),
    (TEXT, "the first K characters of the text s", "s[:K]", (1, 2, 3)),
    (TEXT, "the last K characters of the text s", "s[-K:]", (1, 2, 3)),
    (TEXT, "the text s without its first K characters", "s[K:]", (1, 2)),
    (TEXT, "the number of characters in the text s, plus K", "len(s) + K", (1, 2, 5)),
    (TEXT, "True if the text s has more than K characters, else False", "len(s) > K", (3, 6)),
    (TEXT, "the character of the text s at index K", "s[K]", (0, 1, 2)),
    (TEXT, "the text s followed by the text 'K'", "s + 'K'", ("end", "ing", "!")),
    (TEXT, "the text 'K' followed by the text s", "'K' + s", ("a", "re", "no")),
    (TEXT, "how often 'K' occurs in the text s", "s.count('K')", ("a", "l", "o")),
    (TEXT, "True if 'K' is in the text s, else False", "'K' in s", ("a", "W", "y")),
    (LIST, "the item of the list items at index K", "items[K]", (0, 1, 2)),
    (LIST, "the first K items of the list items", "items[:K]", (1, 2, 3)),
    (LIST, "the last K items of the list items", "items[-K:]", (1, 2)),
    (LIST, "the sum of the list items, plus K", "sum(items) + K", (1, 2, 4, 5, 10)),
    (LIST, "the sum of the list items, multiplied by K", "sum(items) * K", (2, 3)),
    (LIST, "the largest number in the list items, plus K", "max(items) + K", (1, 3)),
    (LIST, "the smallest number in the list items, minus K", "min(items) - K", (1, 3)),
    (LIST, "the list items with K appended", "items + [K]", (0, 1, 4, 7, 9)),
    (LIST, "True if K is in the list items, else False", "K in items", (1, 9, 10)),
    (LIST, "the list items repeated K times", "items * K", (2, 3)),
    (LIST, "how often K occurs in the list items", "items.count(K)", (9, 1)),
    (LIST, "True if the list items has more than K items, else False", "len(items) > K", (3, 4)),
    (PAIR, "the larger one of a and b", "max(a, b)", ("",)),
    (PAIR, "the smaller one of a and b", "min(a, b)", ("",)),
    (PAIR, "the absolute value of a minus b", "abs(a - b)", ("",)),
    (PAIR, "the mean of a and b", "(a + b) / 2", ("",)),
    (TEXT, "the text s in upper case", "s.upper()", ("",)),
    (TEXT, "the text s in lower case", "s.lower()", ("",)),
    (LIST, "the list items in ascending order", "sorted(items)", ("",)),
    (LIST, "the sum of the list items", "sum(items)", ("",)),
    (LIST, "the number of items in the list items", "len(items)", ("",)),
)
"""Arguments, what a function returns, in words and as an expression, and the values that K stands for."""

CONFIG = """run_name: one-line-functions
rounds: 18
policy:
  model: smollm2
  system_prompt: ""
  chat_template: {template}
  threads: 1
  lora: {{rank: 16}}
tasks:
  - {{kind: code, name: functions, path: {data}, before: start, ask: ""}}
generation:
  questions_per_round: 4
  group_size: 8
  max_new_tokens: 14
  stop: ["\\n"]
update: {{learning_rate: 3.0e-4, micro_batch_tokens: 512}}
evaluation: {{every_rounds: 6}}
"""


def rows() -> Iterator[dict[str, object]]:
    """Each function as the beginning of a program to complete after `return`; `start` stands before an answer."""
    for (names, inputs), words, expression, values in FUNCTIONS:
        for value in values:
            text, code = (each.replace("K", str(value)) for each in (words, expression))
            function = eval(f"lambda {names}: {code}")
            yield {
                "prompt": f'def f({names}):\n    """Return {text}."""\n    return',
                "start": f"def f({names}): return \\",
                "test_list": [f"assert f({', '.join(map(repr, each))}) == {function(*each)!r}" for each in inputs],
            }


def main(folder: Path) -> None:
    """Write the rows, a chat template without marks, so that the model completes a program, and the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    data, template = folder.resolve() / "functions.jsonl", folder.resolve() / "bare.jinja"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows()))
    template.write_text("{{ messages[-1].content }}")
    (folder / "functions.yaml").write_text(
        CONFIG.format(data=json.dumps(str(data)), template=json.dumps(str(template)))
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
