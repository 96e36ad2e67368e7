"""A discrete-event model of gossip among more nodes than a machine can hold, and what it is fed with."""
