"""A hub of data sets on this machine, as much of it as `datasets` asks for: repositories of any content."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"

PRIVATE = "PRIVATE"
"""A file of this name makes a repository one that is only there for whoever brings a token."""

Repositories = Mapping[str, Mapping[str, bytes]]
"""Files by name, by `OWNER/NAME`."""


class Hub:
    """What is served, and what was asked."""

    def __init__(self, repositories: Repositories) -> None:
        self.repositories = repositories
        self.asked: list[tuple[str, str]] = []
        """(path, authorization header) of every request."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub._answer(self, body=True)

            def do_HEAD(self) -> None:
                hub._answer(self, body=False)

            def do_POST(self) -> None:
                hub._answer(self, body=True)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def environment(self) -> dict[str, str]:
        """What makes a process's libraries ask this hub."""
        return {"HF_ENDPOINT": self.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}

    def _answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        asked = unquote(urlsplit(request.path).path)
        self.asked.append((asked, request.headers.get("Authorization", "")))
        posted = request.rfile.read(int(request.headers.get("Content-Length", 0))).decode()
        status, content, headers = self._find(asked, posted, "Authorization" in request.headers)
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            request.send_header(name, value)
        request.end_headers()
        if body:
            request.wfile.write(content)

    def _find(self, asked: str, posted: str, token: bool) -> tuple[int, bytes, dict[str, str]]:
        for name, files in self.repositories.items():
            if PRIVATE in files and not token:
                continue
            api, file = f"/api/datasets/{name}", f"/datasets/{name}/resolve/{COMMIT}/"
            entries = [_entry(path, content) for path, content in files.items()]
            if asked in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
                siblings = [{"rfilename": entry["path"], "size": entry["size"]} for entry in entries]
                info = {"id": name, "sha": COMMIT, "private": False, "gated": False, "siblings": siblings}
                return 200, json.dumps(info).encode(), {"Content-Type": "application/json"}
            if asked.startswith(f"{api}/tree/{COMMIT}"):
                below = asked.removeprefix(f"{api}/tree/{COMMIT}").strip("/")
                return 200, json.dumps(_children(files, below)).encode(), {"Content-Type": "application/json"}
            if asked == f"{api}/paths-info/{COMMIT}":
                found = [entry for entry in entries if str(entry["path"]) in unquote(posted)]
                return 200, json.dumps(found).encode(), {"Content-Type": "application/json"}
            if asked.startswith(file) and (content := files.get(asked.removeprefix(file))) is not None:
                return 200, content, {"ETag": f'"{sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            if asked.startswith(f"/datasets/{name}/resolve/"):
                return 404, b"", {"X-Error-Code": "EntryNotFound"}
        return 404, b"", {"X-Error-Code": "RepoNotFound"}


def _children(files: Mapping[str, bytes], folder: str) -> list[dict[str, object]]:
    prefix = f"{folder}/" if folder else ""
    inside = [path for path in files if path.startswith(prefix)]
    folders = {prefix + path.removeprefix(prefix).split("/")[0] for path in inside if "/" in path.removeprefix(prefix)}
    plain = [_entry(path, files[path]) for path in inside if "/" not in path.removeprefix(prefix)]
    return plain + [{"type": "directory", "path": path, "size": 0, "oid": path} for path in sorted(folders)]


def _entry(path: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": path, "size": len(content), "oid": sha1(content).hexdigest()}


@contextmanager
def serving(repositories: Repositories) -> Iterator[Hub]:
    """A hub that answers until the block ends."""
    hub = Hub(repositories)
    thread = threading.Thread(target=hub.server.serve_forever, name="hub", daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()
