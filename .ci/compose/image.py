"""What an image is built from: a base with Python, and packages as pip is configured on this machine."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from commands import ROOT, WORK, Failed, Skipped, run, step, succeeds
from engine import install

LOCAL_BASE = "swarm-compose-test-base"


def base_image() -> str:
    """An image with Python that is here, can be pulled, or is made from Debian's packages."""
    wanted = os.environ.get("BASE_IMAGE") or default_base()
    if succeeds("docker", "image", "inspect", wanted) or succeeds("docker", "pull", wanted, timeout_s=180):
        return with_certificates(wanted)
    if not succeeds("docker", "image", "inspect", LOCAL_BASE):
        if os.geteuid() != 0:
            raise Skipped(f"{wanted} cannot be pulled, and only root can make a base image")
        if not shutil.which("debootstrap"):
            install("debootstrap")
        with step(f"make a base image, as {wanted} cannot be pulled"):
            bootstrap_debian()
    return with_certificates(LOCAL_BASE)


def default_base() -> str:
    """What the Dockerfile builds on by itself."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("ARG BASE_IMAGE="))


def bootstrap_debian() -> None:
    """Debian bookworm, whose Python is 3.11, as an image."""
    folder = Path(tempfile.mkdtemp(prefix="debian-", dir=WORK))
    try:
        packages = "--include=python3,python3-venv,ca-certificates"
        run("debootstrap", "--variant=minbase", packages, "bookworm", str(folder))
        for cache in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"):
            shutil.rmtree(folder / cache, ignore_errors=True)
        with subprocess.Popen(["docker", "import", "-", LOCAL_BASE], stdin=subprocess.PIPE) as importing:
            assert importing.stdin is not None
            with importing.stdin, tarfile.open(fileobj=importing.stdin, mode="w|") as archive:
                archive.add(folder, arcname=".")
        if importing.returncode:
            raise Failed("docker import did not take the base image")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def with_certificates(base: str) -> str:
    """The image, plus this machine's certificates where it has some of its own for pip."""
    bundle = own_certificates()
    if not bundle or not Path(bundle).is_file():
        return base
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        shutil.copyfile(bundle, Path(folder, "bundle.crt"))
        target = "/etc/ssl/certs/machine.crt"
        lines = f"FROM {base}\nCOPY bundle.crt {target}\nENV PIP_CERT={target} SSL_CERT_FILE={target}\n"
        Path(folder, "Dockerfile").write_text(lines)
        run("docker", "build", "-t", f"{LOCAL_BASE}:certificates", folder)
    return f"{LOCAL_BASE}:certificates"


def own_certificates() -> str:
    """The bundle that pip uses here, as the environment or its own settings have it; empty for its built-in one."""
    for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        if bundle := os.environ.get(name):
            return bundle
    settings = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found = re.search(r"^global\.cert='(.+)'$", settings, re.MULTILINE)
    return found[1] if found else ""


class FolderHandler(http.server.SimpleHTTPRequestHandler):
    """Files and listings below some folders, under their own paths."""

    def __init__(self, *args: object, folders: list[Path], **kwargs: object) -> None:
        """`folders` are all that can be read."""
        self.folders = folders
        super().__init__(*args, directory="/", **kwargs)  # type: ignore[arg-type]

    def send_head(self) -> object:  # type: ignore[override]
        """Refuses what lies elsewhere."""
        asked = Path(self.translate_path(self.path)).resolve()
        if any(asked == folder or folder in asked.parents for folder in self.folders):
            return super().send_head()
        self.send_error(404)
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextlib.contextmanager
def package_sources() -> Iterator[dict[str, str]]:
    """pip's configuration on this machine as build arguments; folders become addresses on loopback."""
    settings = {}
    for name in ("index-url", "extra-index-url", "find-links"):
        variable = f"PIP_{name.replace('-', '_').upper()}"
        configured = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", f"global.{name}"], capture_output=True, text=True
        )
        settings[variable] = os.environ.get(variable) or configured.stdout.strip()
    folders: list[Path] = []
    # The same port every time: it is part of the arguments that the builder's cache goes by.
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", stable_port()),
        functools.partial(FolderHandler, folders=folders),  # type: ignore[arg-type]
    )
    for variable, value in settings.items():
        settings[variable] = " ".join(
            reachable(item, "INDEX" in variable, folders, server.server_address[1]) for item in value.split()
        )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield settings
    finally:
        server.shutdown()


def stable_port() -> int:
    """A free port, and the same one for a checkout if that is free."""
    port = 20_000 + zlib.crc32(str(ROOT).encode()) % 10_000
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port


def reachable(location: str, is_index: bool, folders: list[Path], port: int) -> str:
    """A location that a container on the host's network can read."""
    path = Path(unquote(urlsplit(location).path))
    if not location.startswith(("file://", "/")) or not path.is_dir():
        return location
    folders.append((path.parent if is_index else path).resolve())  # the pages of an index link to files beside it
    return f"http://127.0.0.1:{port}{path.resolve()}/"
