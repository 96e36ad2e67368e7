"""hivemind's DHT without the rest of hivemind, for a process that wants nothing else of it.

`import hivemind` imports all of it, and torch: 240 MB and seconds, where the DHT alone takes 25 MB and a tenth of one.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec

PACKAGES = ("hivemind", "hivemind.utils", "hivemind.dht")
NAMES = {
    "hivemind.utils.logging": ("get_logger",),
    "hivemind.utils.serializer": ("MSGPackSerializer", "SerializerBase"),
    "hivemind.utils.timed_storage": ("get_dht_time",),
}
"""What the DHT's modules take from `hivemind.utils` itself, and where that has it from."""


def install() -> None:
    """Let `hivemind.dht.node` and `hivemind.p2p` be imported by themselves; before anything of hivemind was.

    The packages are put in place without running what is in their `__init__`.
    """
    assert "hivemind" not in sys.modules, "hivemind must not have been imported yet"
    for name in PACKAGES:
        spec = find_spec(name)
        assert spec is not None, "hivemind must be installed"
        sys.modules[name] = module_from_spec(spec)
    for module, names in NAMES.items():
        for name in names:
            setattr(sys.modules["hivemind.utils"], name, vars(import_module(module))[name])
