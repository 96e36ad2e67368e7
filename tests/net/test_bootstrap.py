from __future__ import annotations

import os
from pathlib import Path

import pytest

from swarm.errors import ConfigError
from swarm.net.addresses.bootstrap import Bootstraps, read_addresses, write_addresses
from swarm.net.records.identity import Identity

A, B, C = (f"/ip4/10.0.0.{i}/tcp/{i}/p2p/{Identity.generate().peer_id}" for i in (1, 2, 3))
ID = Identity.generate().peer_id


def test_a_file_is_read_again_when_it_changes_and_kept_when_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "boot"
    bootstraps = Bootstraps([f"file:{path}", C], {})
    assert bootstraps.multiaddrs() == (C,)
    path.write_text(f"# ours\n{A}  # the first\n\nnonsense\n")
    assert bootstraps.multiaddrs() == (A, C)
    path.write_text(f"{B}\n{C}\n")
    os.utime(path, ns=(1, 1))
    assert bootstraps.multiaddrs() == (B, C)
    path.unlink()
    assert bootstraps.multiaddrs() == (B, C)
    assert list(bootstraps.by_peer()) == [address.rpartition("/")[2] for address in (B, C)]


def test_blanks_around_an_address_are_none_of_it(tmp_path: Path) -> None:
    assert Bootstraps([f" {A}\n", f"{C}\t"], {}).multiaddrs() == (A, C)


def test_a_file_without_addresses_is_named(tmp_path: Path) -> None:
    there, empty, folder = tmp_path / "boot", tmp_path / "empty", tmp_path / "folder"
    empty.write_text("# nobody\nnonsense\n")
    folder.mkdir()
    bootstraps = Bootstraps([f"file:{there}", f"file:{empty}", f"file:{folder}", C], {})
    problems = bootstraps.problems()
    assert problems == {
        f"file:{there}": f"there is no file {there} yet",
        f"file:{empty}": f"there is no address in {empty}",
        f"file:{folder}": f"{folder} cannot be read: is a directory",
    }
    assert bootstraps.look_up() == problems
    there.write_text(A)
    assert list(bootstraps.problems()) == [f"file:{empty}", f"file:{folder}"]
    assert list(Bootstraps(["file:no\0such"], {}).problems()) == ["file:no\0such"]


def test_a_variable_and_host_names(tmp_path: Path) -> None:
    peer_id = A.rpartition("/")[2]
    bootstraps = Bootstraps(
        ["env:BOOT", f"hosts:boot.example:31337/p2p/{peer_id},10.1.2.3:4/p2p/{peer_id}"], {"BOOT": f"{A}, {B}\n{C}"}
    )
    hosts = (f"/dns4/boot.example/tcp/31337/p2p/{peer_id}", f"/ip4/10.1.2.3/tcp/4/p2p/{peer_id}")
    assert bootstraps.multiaddrs() == (A, B, C, *hosts)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "boot.example:1",
        "env:UNSET",
        "env:BAD",
        "hosts:boot.example",
        "hosts:boot:1/p2p/Qm",
        "/ip4/1.2.3.4",
        A.replace("/tcp/", "/tcp"),
        f"/ip4/127.0.0.300/tcp/1/p2p/{ID}",
        f"/ip4/127.0.0.1/tcp/p2p/{ID}",
        f"/ip4/127.0.0.1/tcp/99999/p2p/{ID}",
        f"/ip4/127.0.0.1/4001/p2p/{ID}",
        f"/dns4/a b/tcp/1/p2p/{ID}",
    ],
    ids=lambda entry: entry.partition("/p2p/12D3KooW")[0],  # identities differ in each process
)
def test_entries_that_name_no_peer_are_refused(entry: str) -> None:
    with pytest.raises(ConfigError):
        Bootstraps([entry], {"BAD": "localhost:1"})


def test_what_is_written_is_read_and_bytes_of_any_kind_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "new" / "peers.known"
    write_addresses(path, [A, B], "known peers")
    assert read_addresses(path) == (A, B) and list(path.parent.iterdir()) == [path]
    path.write_bytes(os.urandom(2_000))
    assert read_addresses(path) == ()
    with pytest.raises(FileNotFoundError):
        read_addresses(tmp_path / "none")
