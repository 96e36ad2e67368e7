"""What the process that nodes are forked from imports, once; nothing else imports this.

None of the network's libraries: which one a node takes is in its configuration, and no process can have both.
"""

import gc

import nodes.roles.bootstrap
import nodes.roles.join
import nodes.roles.learner
import nodes.roles.worker  # noqa: F401

# A child's collector would write to what it shares with its siblings: time, and memory for a copy.
gc.collect()
gc.freeze()
