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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "wise-0.5b"
Script = Callable[["Asked"], tuple[int, bytes]]
LEGS = {"bird": 2, "chicken": 2, "human": 2, "spider": 8, "scorpion": 8, "ant": 6, "bee": 6, "insect": 6, "snake": 0}


class Asked:
    """One request for completions."""

    def __init__(self, headers: dict[str, str], body: dict[str, Any]) -> None:
        self.headers = headers
        self.body = body

    @property
    def question(self) -> str:
        return str(self.body["messages"][-1]["content"])

    @property
    def n(self) -> int:
        return int(self.body.get("n", 1))


class ModelServer:
    """Keeps what it is asked; `script` may be replaced at any time."""

    def __init__(self, script: Script, models: tuple[str, ...] = (MODEL,)) -> None:
        self.asked: list[Asked] = []
        self.script = script
        self.models = models
        self.released = threading.Event()
        """A reply that hangs ends with it."""
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        kept = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listed = {"data": [{"id": name, "object": "model"} for name in kept.models]}
                self._reply(200 if self.path == "/v1/models" else 404, json.dumps(listed).encode())

            def do_POST(self) -> None:
                asked = Asked(dict(self.headers), json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                if self.path != "/v1/chat/completions":
                    self._reply(404, b"<html>not here</html>")
                    return
                with kept._lock:
                    kept.asked.append(asked)
                    kept._at_once += 1
                    kept.most_at_once = max(kept.most_at_once, kept._at_once)
                try:
                    code, content = kept.script(asked)
                finally:
                    with kept._lock:
                        kept._at_once -= 1
                self._reply(code, content)

            def _reply(self, code: int, content: bytes) -> None:
                try:
                    self.send_response(code)
                    if 300 <= code < 400:
                        self.send_header("Location", content.decode())
                        content = b""
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    pass  # the client has gone

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def model_server(script: Script, models: tuple[str, ...] = (MODEL,)) -> Iterator[ModelServer]:
    server = ModelServer(script, models)
    try:
        yield server
    finally:
        server.close()


def completions(*texts: str, finish: str = "stop", model: str = MODEL) -> tuple[int, bytes]:
    """A chat completion with these choices."""
    choices = [
        {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
        for index, text in enumerate(texts)
    ]
    usage = {"completion_tokens": sum(len(text) // 4 + 1 for text in texts), "total_tokens": 100}
    return 200, json.dumps({"model": model, "choices": choices, "usage": usage}).encode()


def solver(right: float, wait_s: float = 0.0, supports_n: bool = True, seed: int = 0) -> Script:
    """Answers the embedded tasks, each completion right with a probability."""
    chance = random.Random(seed)

    def respond(asked: Asked) -> tuple[int, bytes]:
        time.sleep(wait_s)
        answer = solution(asked.question)
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
    with model_server(solver(given.right, given.wait)) as server:
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
