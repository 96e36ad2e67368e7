"""An OpenAI-compatible server on this machine that replies as a test wants, or misbehaves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Respond = Callable[["Asked"], tuple[int, bytes]]


class Asked:
    """One request."""

    def __init__(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> None:
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def prompt(self) -> str:
        return str(self.body["messages"][-1]["content"])


class JudgeServer:
    """Keeps what it is asked."""

    def __init__(self, respond: Respond) -> None:
        self.asked: list[Asked] = []
        self.respond = respond
        self.released = threading.Event()
        """A reply that hangs ends with it."""
        kept = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked = Asked(self.path, dict(self.headers), body)
                kept.asked.append(asked)
                code, content = kept.respond(asked)
                self.send_response(code)
                if 300 <= code < 400:
                    self.send_header("Location", content.decode())
                    content = b""
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


def says(text: str, tokens: int = 30) -> tuple[int, bytes]:
    """A chat completion."""
    message = {"role": "assistant", "content": text}
    body = {"id": "1", "choices": [{"index": 0, "message": message}], "usage": {"total_tokens": tokens}}
    return 200, json.dumps(body).encode()


@contextmanager
def judge_server(respond: Respond) -> Iterator[JudgeServer]:
    """A server that is closed at the end."""
    server = JudgeServer(respond)
    try:
        yield server
    finally:
        server.close()
