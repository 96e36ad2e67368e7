"""An OpenAI-compatible server on this machine: right with a probability on the embedded tasks, or as a test scripts it.

python -m tests.extras.give.server --right 0.5 --wait 0.05      prints its address
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import threading
import time

from tests.chat_server import MODEL, Asked, Respond, chat_server

LEGS = {"bird": 2, "chicken": 2, "human": 2, "spider": 8, "scorpion": 8, "ant": 6, "bee": 6, "insect": 6, "snake": 0}


def completions(*texts: str, finish: str = "stop", model: str = MODEL) -> tuple[int, bytes]:
    """A chat completion with these choices."""
    choices = [
        {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
        for index, text in enumerate(texts)
    ]
    usage = {"completion_tokens": sum(len(text) // 4 + 1 for text in texts), "total_tokens": 100}
    return 200, json.dumps({"model": model, "choices": choices, "usage": usage}).encode()


def solver(right: float, wait_s: float = 0.0, supports_n: bool = True, seed: int = 0) -> Respond:
    """Answers the embedded tasks, each completion right with a probability."""
    chance = random.Random(seed)

    def respond(asked: Asked) -> tuple[int, bytes]:
        time.sleep(wait_s)
        answer = solution(asked.prompt)
        wrong = [str(chance.randrange(0, 20)) for _ in range(asked.n)]
        texts = [answer if chance.random() < right and answer is not None else each for each in wrong]
        return completions(*(f"<answer>{text}</answer>" for text in texts[: None if supports_n else 1]))

    return respond


def solution(question: str) -> str | None:
    """The right answer to a question of the embedded tasks; None where it is not known."""
    numbers = [int(each) for each in re.findall(r"\d+", question)]
    if found := re.search(r"Calculate (\d+) ([+-]) (\d+)", question):
        return str(int(found[1]) + int(found[3]) * (1 if found[2] == "+" else -1))
    if "multiplication" in question:
        return str(math.prod(numbers))
    if "Greatest Common" in question:
        return str(math.gcd(*numbers))
    if "Least Common" in question:
        return str(math.lcm(*numbers))
    if "1 bits" in question:
        return str(numbers[1].bit_count())
    if found := re.search(r'letter "(\w)" appear in the text: "([^"]*)"', question):
        return str(found[2].lower().count(found[1].lower()))
    if found := re.search(r"fraction (\d+)/(\d+)", question):
        common = math.gcd(int(found[1]), int(found[2]))
        return f"{int(found[1]) // common}/{int(found[2]) // common}"
    if found := re.search(r": (?:(\d+)\*)?[a-z](?: ([+-]) (\d+))? = (\d+)", question):
        shift = int(found[3] or 0) * (-1 if found[2] == "+" else 1)
        return str((int(found[4]) + shift) // int(found[1] or 1))
    if found := re.search(r"you have (\d+) (\w+?)s?\?", question):
        return str(int(found[1]) * LEGS.get(found[2], 4))
    return None


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--right", type=float, default=0.5)
    parser.add_argument("--wait", type=float, default=0.02)
    given = parser.parse_args()
    with chat_server(solver(given.right, given.wait)) as server:
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
