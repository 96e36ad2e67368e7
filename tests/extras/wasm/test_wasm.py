"""WebAssembly programs that call the system with anything: its answers are ours, and its addresses the program's."""

from __future__ import annotations

import pytest

wasmtime = pytest.importorskip("wasmtime", reason="needs the extra tools")

from swarm.extras.wasm.wasm import Limits, Program, Run  # noqa: E402

LIMITS = Limits(fuel=1_000_000, memory_bytes=2**18, output_bytes=8)

IMPORTS = {
    "fd_write": "(param i32 i32 i32 i32) (result i32)",
    "fd_read": "(param i32 i32 i32 i32) (result i32)",
    "args_get": "(param i32 i32) (result i32)",
    "args_sizes_get": "(param i32 i32) (result i32)",
    "clock_time_get": "(param i32 i64 i32) (result i32)",
    "path_open": "(param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)",
    "fd_prestat_dir_name": "(param i32 i32 i32) (result i32)",
    "proc_exit": "(param i32)",
    "sock_shutdown": "(param i32 i32) (result i32)",
}
TEXT = '(data (i32.const 0) "\\10\\00\\00\\00\\05\\00\\00\\00")(data (i32.const 16) "hello world")'
"""A piece of five characters at 16, described at 0."""


def run(body: str, limits: Limits = LIMITS, arguments: tuple[bytes, ...] = (b"program",)) -> Run:
    imports = "".join(
        f'(import "wasi_snapshot_preview1" "{name}" (func ${name} {kind}))' for name, kind in IMPORTS.items()
    )
    module = f'(module {imports} (memory (export "memory") 1) {TEXT} (func (export "_start") {body}))'
    return Program(bytes(wasmtime.wat2wasm(module))).run(arguments, limits)


def call(name: str, *arguments: int | str) -> str:
    wide = {"clock_time_get": {1}, "path_open": {5, 6}}.get(name, set())
    given = " ".join(f"(i{64 if i in wide else 32}.const {value})" for i, value in enumerate(arguments))
    return f"(call ${name} {given})"


def test_output_is_what_was_written_up_to_the_limit() -> None:
    write = f"(drop {call('fd_write', 1, 0, 1, 32)})"
    assert run(write).output == b"hello"
    assert run(write * 3).output == b"hellohel"
    assert run(f"(drop {call('fd_write', 7, 0, 1, 32)})").output == b"", "there is no such stream"


@pytest.mark.parametrize(
    "attempt",
    [
        call("fd_write", 1, 0x7FFFFFF0, 1, 32),
        call("fd_write", 1, 0, 1, -1),
        call("fd_write", 1, 0, -1, 32),
        call("fd_write", 1, 0, 0x7FFFFFFF, 32),
        call("fd_read", 4, 0x7FFFFFF0, 1, 32),
        call("fd_read", 4, 0, 17, 32),
        call("args_get", -4, 0),
        call("args_get", 0, 65_534),
        call("args_sizes_get", 65_535, 0),
        call("clock_time_get", 0, 0, 65_530),
        call("path_open", 3, 0, -1, 11, 0, 0, 0, 0, 0),
        call("fd_prestat_dir_name", 3, 65_536, 1),
    ],
)
def test_addresses_outside_the_memory_end_the_program_alone(attempt: str) -> None:
    assert run(f"(drop {attempt})").ending == "crashed"


def returns(attempt: str, code: int) -> bool:
    return run(f"(if (i32.ne {attempt} (i32.const {code})) (then unreachable))").ending == "exited"


def test_what_is_not_offered_is_refused() -> None:
    assert returns(call("sock_shutdown", 1, 1), 76)
    assert returns(call("path_open", 3, 0, 16, 5, 0, 0, 0, 0, 0), 44)
    assert returns(call("fd_read", 0, 0, 1, 32), 8)
    assert returns(call("fd_read", 4, 0, 0, 32), 0)


def test_fuel_memory_calls_and_exit() -> None:
    endless = run("(loop $again (br $again))")
    assert (endless.ending, endless.fuel) == ("out of fuel", LIMITS.fuel)
    calls = run(f"(loop $again (drop {call('clock_time_get', 0, 0, 0)}) (br $again))", Limits(10**9, 2**18, 8))
    assert calls.ending == "out of fuel" and calls.fuel < 10**6
    assert run("(if (i32.ge_s (memory.grow (i32.const 8)) (i32.const 0)) (then unreachable))").ending == "exited"
    assert run(f"{call('proc_exit', 3)} unreachable").ending == "exited"
    assert run("unreachable").ending == "crashed"
