"""Import parts of hivemind without the rest.

`import hivemind` loads everything, including torch and scipy: 240 MB and seconds, where the DHT alone takes 25 MB and
0.1 s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec

PACKAGES = ("hivemind", "hivemind.utils", "hivemind.dht")
NAMES = {
    "hivemind.utils.logging": ("get_logger",),
    "hivemind.utils.serializer": ("MSGPackSerializer", "SerializerBase"),
    "hivemind.utils.timed_storage": ("get_dht_time",),
}
"""Names that the modules in use import from `hivemind.utils`, by the module that defines them."""


@contextmanager
def without_the_rest() -> Iterator[None]:
    """Within the block, modules of `hivemind.dht`, `.p2p`, `.proto` and `.utils` are imported on their own.

    The packages are registered without running their `__init__`, and only for the block: a later `import hivemind` by
    others in this process is the whole library, which keeps the modules imported here.
    """
    if "hivemind" in sys.modules:  # whole, or by an enclosing block
        yield
        return
    try:
        for name in PACKAGES:
            spec = find_spec(name)
            assert spec is not None, "hivemind must be installed"
            sys.modules[name] = module_from_spec(spec)
        for module, names in NAMES.items():
            for name in names:
                setattr(sys.modules["hivemind.utils"], name, vars(import_module(module))[name])
        yield
    finally:
        for name in PACKAGES:
            sys.modules.pop(name, None)
