"""Import hivemind's DHT without the rest of hivemind.

`import hivemind` loads everything, including torch: 240 MB and seconds, where the DHT alone takes 25 MB and 0.1 s.
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
"""Names that the DHT's modules import from `hivemind.utils`, by the module that defines them."""


def install() -> None:
    """Make `hivemind.dht.node` and `hivemind.p2p` importable on their own; call it before any import of hivemind.

    The packages are registered without running their `__init__`.
    """
    assert "hivemind" not in sys.modules, "hivemind must not have been imported yet"
    for name in PACKAGES:
        spec = find_spec(name)
        assert spec is not None, "hivemind must be installed"
        sys.modules[name] = module_from_spec(spec)
    for module, names in NAMES.items():
        for name in names:
            setattr(sys.modules["hivemind.utils"], name, vars(import_module(module))[name])
