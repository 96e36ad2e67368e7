"""Which groups an update learns from: a policy decides I, J and the candidates' weights; one draw serves them all."""

from __future__ import annotations

from swarm.sapo.mixing.base import Candidate, Decision, History, MixPolicy, MixRound, MixState
from swarm.sapo.mixing.mixer import Mix, Mixer, Screen, Wishes, authors, in_random_order, mix, mix_figures
from swarm.sapo.mixing.policies import MixSettings

__all__ = [
    "Candidate",
    "Decision",
    "History",
    "Mix",
    "MixPolicy",
    "MixRound",
    "MixSettings",
    "MixState",
    "Mixer",
    "Screen",
    "Wishes",
    "authors",
    "in_random_order",
    "mix",
    "mix_figures",
]
