"""An OpenAI-compatible server on this machine that replies as a test wants, or misbehaves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "wise-0.5b"
Respond = Callable[["Asked"], tuple[int, bytes]]


class Asked:
    """One request for completions."""

    def __init__(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> None:
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def prompt(self) -> str:
        return str(self.body["messages"][-1]["content"])

    @property
    def n(self) -> int:
        return int(self.body.get("n", 1))


class ChatServer:
    """Keeps what it is asked; `respond` may be replaced at any time."""

    def __init__(self, respond: Respond, models: tuple[str, ...] = (MODEL,)) -> None:
        self.asked: list[Asked] = []
        self.respond = respond
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
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked = Asked(self.path, dict(self.headers), body)
                with kept._lock:
                    kept.asked.append(asked)
                    kept._at_once += 1
                    kept.most_at_once = max(kept.most_at_once, kept._at_once)
                try:
                    here = self.path.endswith(("/v1/chat/completions", "/rewards"))
                    code, content = kept.respond(asked) if here else (404, b"<html>not here</html>")
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
def chat_server(respond: Respond, models: tuple[str, ...] = (MODEL,)) -> Iterator[ChatServer]:
    server = ChatServer(respond, models)
    try:
        yield server
    finally:
        server.close()
