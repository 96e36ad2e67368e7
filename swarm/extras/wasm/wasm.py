"""Runs a WebAssembly program that has nothing but its arguments: no files, no clock, no network, no randomness.

    arguments ──▶ fresh instance ──▶ output
                   │ fuel for so many instructions, so much memory
                   └─ the calls of WASI that are answered: arguments, output, exit, a clock that stands, `/dev/random`
                      with bytes that are always the same; all others fail

None of this depends on the machine: floating-point results with NaN are made canonical, and WASI is answered here and
not by the operating system.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b, shake_128
from typing import Literal

import wasmtime
from msgspec import Struct

Ending = Literal["exited", "out of fuel", "crashed"]
Report = Callable[[bytes, int], int | None]
"""Is called with what a program writes to standard error, and the fuel that it has left; returns what it has from now
on, or None to leave it so."""

_SUCCESS, _BAD_DESCRIPTOR, _NOT_FOUND, _NOT_CAPABLE = 0, 8, 44, 76
_STANDARD_STREAMS = (1, 2)
_ERRORS = 2
_ROOT, _RANDOMNESS = 3, 4
"""Descriptors of the directory that holds these files, and of either of them."""
_RANDOM_FILES = (b"dev/random", b"dev/urandom")
_DIRECTORY, _DEVICE = 3, 2
_WASI = "wasi_snapshot_preview1"
_MAX_PIECES = 16
"""Pieces of one read or write."""
_MAX_RANDOM_BYTES = 4_096
"""Most bytes of one call; what is asked beyond stays as it was."""
_MAX_CALLS = 4_096
"""Calls of the system in one run: each costs the host more than its fuel."""
_MAX_WASM_STACK = 2**21
"""Bytes. More than the guests' own limits allow them to use: these do not depend on the processor."""


class Limits(Struct, frozen=True):
    """What one run may take."""

    fuel: int
    """About the number of WebAssembly instructions."""
    memory_bytes: int
    output_bytes: int
    """What is written beyond is dropped."""


class Run(Struct, frozen=True):
    """What became of a run."""

    output: bytes
    """Standard output and standard error, as they were written."""
    ending: Ending
    fuel: int
    """Used."""


class Program:
    """A compiled program. Runs share nothing."""

    def __init__(self, wasm: bytes) -> None:
        """Compile. Raises `wasmtime.WasmtimeError`."""
        config = wasmtime.Config()
        config.consume_fuel = True
        config.cranelift_nan_canonicalization = True
        config.wasm_exceptions = True
        config.wasm_threads = False
        config.wasm_relaxed_simd = False
        config.max_wasm_stack = _MAX_WASM_STACK
        config.parallel_compilation = False  # the sandbox has no threads
        config.memory_init_cow = False  # nor files in memory
        self._engine = wasmtime.Engine(config)
        self._module = wasmtime.Module(self._engine, wasm)

    def run(self, arguments: Sequence[bytes], limits: Limits, report: Report | None = None) -> Run:
        """Run from the start to the exit, or to a limit. With `report`, standard output is dropped.

        Raises `MemoryError` if this process has no room for the program: that is not the program's doing.
        """
        store = wasmtime.Store(self._engine)
        try:
            return self._run(store, arguments, limits, report)
        finally:
            store.close()  # its memory would wait for the garbage collector

    def _run(self, store: wasmtime.Store, arguments: Sequence[bytes], limits: Limits, report: Report | None) -> Run:
        store.set_limits(memory_size=limits.memory_bytes, instances=1, memories=1, tables=8, table_elements=2**15)
        store.set_fuel(limits.fuel)
        system = _System(arguments, limits.output_bytes, None if report is None else _Meter(store, report))
        linker = system.linked(self._engine, self._module)
        ending: Ending = "exited"
        try:
            start = _instance(store, linker, self._module).exports(store)["_start"]
            assert isinstance(start, wasmtime.Func)
            start(store)
        except _Exit:
            pass
        except _TooManyCalls:
            ending = "out of fuel"
        except wasmtime.Trap as trap:
            ending = "out of fuel" if trap.trap_code == wasmtime.TrapCode.OUT_OF_FUEL else "crashed"
        except (wasmtime.WasmtimeError, _Nonsense):
            ending = "crashed"
        added = 0 if system.meter is None else system.meter.added
        return Run(bytes(system.output), ending, limits.fuel + added - store.get_fuel())


def _instance(store: wasmtime.Store, linker: wasmtime.Linker, module: wasmtime.Module) -> wasmtime.Instance:
    """Raises `MemoryError`, and what instantiation raises that the program has done."""
    try:
        return linker.instantiate(store, module)
    except wasmtime.WasmtimeError as error:
        raise MemoryError(f"a program cannot be started: {error}") from error


class _Meter:
    """Passes on what is written to standard error, and sets the fuel as the answer says."""

    def __init__(self, store: wasmtime.Store, report: Report) -> None:
        self._store = store
        self._report = report
        self.added = 0
        """Fuel, beside that at the start."""

    def write(self, content: bytes) -> None:
        left = self._store.get_fuel()
        if (now := self._report(content, left)) is not None:
            self._store.set_fuel(now)
            self.added += now - left


class _Exit(Exception):
    """The program has called `proc_exit`."""


class _TooManyCalls(Exception):
    """The program has called the system too often."""


class _Nonsense(Exception):
    """The program has passed an address outside its memory, or asked for what is not offered."""


_CALLS = frozenset(
    ("args_get", "args_sizes_get", "environ_get", "environ_sizes_get", "clock_time_get", "fd_write", "fd_read")
    + ("fd_prestat_get", "fd_prestat_dir_name", "fd_fdstat_get", "fd_close", "path_open", "random_get", "proc_exit")
)
"""The calls that are answered: methods of `_System`."""


class _System:
    """The operating system as a program sees it. Addresses and sizes from the program are hostile."""

    def __init__(self, arguments: Sequence[bytes], output_bytes: int, meter: _Meter | None = None) -> None:
        self._arguments = [argument.replace(b"\0", b"") + b"\0" for argument in arguments]
        self._output_bytes = output_bytes
        self.output = bytearray()
        self.meter = meter
        self._num_calls = 0
        self._num_reads = 0

    def linked(self, engine: wasmtime.Engine, module: wasmtime.Module) -> wasmtime.Linker:
        """The module's imports: those named as methods here; the others fail."""
        linker = wasmtime.Linker(engine)
        for each in module.imports:
            assert each.name is not None and isinstance(each.type, wasmtime.FuncType)
            offered = each.module == _WASI and each.name in _CALLS
            call = getattr(self, each.name) if offered else _refused if each.module == _WASI else _not_offered
            linker.define_func(each.module, each.name, each.type, self._counted(call), access_caller=True)
        return linker

    def _counted(self, call: Callable[..., int | None]) -> Callable[..., int | None]:
        def counted(*arguments: object) -> int | None:
            self._num_calls += 1
            if self._num_calls > _MAX_CALLS:
                raise _TooManyCalls
            return call(*arguments)

        return counted

    # the calls of WASI, by their names

    def args_sizes_get(self, caller: wasmtime.Caller, count: int, size: int) -> int:
        _write(caller, count, struct.pack("<I", len(self._arguments)))
        _write(caller, size, struct.pack("<I", sum(map(len, self._arguments))))
        return _SUCCESS

    def args_get(self, caller: wasmtime.Caller, pointers: int, buffer: int) -> int:
        for number, argument in enumerate(self._arguments):
            _write(caller, pointers + 4 * number, struct.pack("<I", buffer))
            _write(caller, buffer, argument)
            buffer += len(argument)
        return _SUCCESS

    def environ_sizes_get(self, caller: wasmtime.Caller, count: int, size: int) -> int:
        _write(caller, count, bytes(4))
        _write(caller, size, bytes(4))
        return _SUCCESS

    def environ_get(self, caller: wasmtime.Caller, pointers: int, buffer: int) -> int:
        return _SUCCESS

    def clock_time_get(self, caller: wasmtime.Caller, clock: int, precision: int, time: int) -> int:
        _write(caller, time, bytes(8))
        return _SUCCESS

    def fd_write(self, caller: wasmtime.Caller, descriptor: int, pieces: int, num_pieces: int, written: int) -> int:
        if descriptor not in _STANDARD_STREAMS:
            return _BAD_DESCRIPTOR
        total = 0
        for address, size in _pieces(caller, pieces, num_pieces):
            total += size
            if self.meter is not None and descriptor != _ERRORS:
                continue
            room = self._output_bytes - len(self.output)
            content = _read(caller, address, min(size, room))
            self.output += content
            if self.meter is not None:
                self.meter.write(content)
        _write(caller, written, struct.pack("<I", total & 0xFFFF_FFFF))
        return _SUCCESS

    def fd_read(self, caller: wasmtime.Caller, descriptor: int, pieces: int, num_pieces: int, read: int) -> int:
        if descriptor != _RANDOMNESS:
            return _BAD_DESCRIPTOR
        total = 0
        for address, size in _pieces(caller, pieces, num_pieces):
            self._num_reads += 1
            block = blake2b(self._num_reads.to_bytes(8, "little")).digest()[:size]
            _write(caller, address, block)
            total += len(block)
        _write(caller, read, struct.pack("<I", total))
        return _SUCCESS

    def fd_prestat_get(self, caller: wasmtime.Caller, descriptor: int, about: int) -> int:
        if descriptor != _ROOT:
            return _BAD_DESCRIPTOR
        _write(caller, about, struct.pack("<II", 0, len(b"/")))
        return _SUCCESS

    def fd_prestat_dir_name(self, caller: wasmtime.Caller, descriptor: int, name: int, size: int) -> int:
        _write(caller, name, b"/"[:size])
        return _SUCCESS

    def fd_fdstat_get(self, caller: wasmtime.Caller, descriptor: int, about: int) -> int:
        if descriptor not in (*_STANDARD_STREAMS, _ROOT, _RANDOMNESS):
            return _BAD_DESCRIPTOR
        kind = _DIRECTORY if descriptor == _ROOT else _DEVICE
        _write(caller, about, struct.pack("<BxHxxxxQQ", kind, 0, 2**64 - 1, 2**64 - 1))
        return _SUCCESS

    def path_open(self, caller: wasmtime.Caller, root: int, lookup: int, path: int, size: int, *rest: int) -> int:
        if root != _ROOT or _read(caller, path, min(size, 64)) not in _RANDOM_FILES:
            return _NOT_FOUND
        _write(caller, rest[-1], struct.pack("<I", _RANDOMNESS))
        return _SUCCESS

    def fd_close(self, caller: wasmtime.Caller, descriptor: int) -> int:
        return _SUCCESS if descriptor == _RANDOMNESS else _BAD_DESCRIPTOR

    def random_get(self, caller: wasmtime.Caller, address: int, size: int) -> int:
        self._num_reads += 1
        size = min(size & 0xFFFF_FFFF, _MAX_RANDOM_BYTES)
        _write(caller, address, shake_128(self._num_reads.to_bytes(8, "little")).digest(size))
        return _SUCCESS

    def proc_exit(self, caller: wasmtime.Caller, code: int) -> None:
        raise _Exit


def _refused(caller: wasmtime.Caller, *arguments: int) -> int:
    return _NOT_CAPABLE


def _not_offered(caller: wasmtime.Caller, *arguments: int) -> int:
    raise _Nonsense


def _memory(caller: wasmtime.Caller) -> wasmtime.Memory:
    memory = caller["memory"]
    assert isinstance(memory, wasmtime.Memory)
    return memory


def _read(caller: wasmtime.Caller, address: int, size: int) -> bytes:
    """Raises `_Nonsense`."""
    address &= 0xFFFF_FFFF
    memory = _memory(caller)
    if size < 0 or address + size > memory.data_len(caller):
        raise _Nonsense
    return bytes(memory.read(caller, address, address + size))


def _write(caller: wasmtime.Caller, address: int, content: bytes) -> None:
    """Raises `_Nonsense`."""
    address &= 0xFFFF_FFFF
    memory = _memory(caller)
    if address + len(content) > memory.data_len(caller):
        raise _Nonsense
    memory.write(caller, content, address)


def _pieces(caller: wasmtime.Caller, address: int, count: int) -> list[tuple[int, int]]:
    """(address, size) of each piece of a scattered read or write. Raises `_Nonsense`."""
    if not 0 <= count <= _MAX_PIECES:
        raise _Nonsense
    content = _read(caller, address, 8 * count)
    return [(start, size) for start, size in struct.iter_unpack("<II", content)]
