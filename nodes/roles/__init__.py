"""The roles of a process in a swarm: `peer.py` is `swarm join`; the other commands' roles are extras.

`bootstrap.py` is `swarm bootstrap`; `role.py` is the base of all, `runtime.py` holds
what surrounds a role, `ranks.py` a policy on several processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarm.kinds import Kinds

if TYPE_CHECKING:
    from nodes.roles.role import RoleNode

ROLES: Kinds[type[RoleNode]] = Kinds(
    "command",
    "swarm.roles",
    "nodes.roles.role:RoleNode",
    {
        "join": "nodes.roles.peer:PeerNode",
        "learn": "swarm.extras.learner.roles.learner:LearnerNode",
        "give": "swarm.extras.give.roles.giver:GiverNode",
        "answer": "swarm.extras.give.roles.person:AnswerNode",
        "work": "swarm.extras.learner.roles.worker:WorkerNode",
    },
)
"""The class of a node by the command that starts it."""
