"""Imports of the process that nodes are forked from; nothing else imports this module.

The network's libraries are left out: a node's configuration chooses one, and no process can have both.
"""

import gc
from contextlib import suppress
from importlib import import_module

from nodes.roles import ROLES
from swarm import torchao

torchao.hide()
import_module("nodes.roles.bootstrap")
list(ROLES.values())  # imports those that are installed
# A thousand regular expressions, which the first model that is loaded needs; other versions may keep them elsewhere.
with suppress(ImportError, AttributeError):
    import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("")
# A child's collector would write to what it shares with its siblings: time, and memory for a copy.
gc.collect()
gc.freeze()
