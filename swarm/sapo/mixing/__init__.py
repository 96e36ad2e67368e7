"""Which groups an update learns from: a policy decides I, J and the candidates' weights; one draw serves them all."""

from __future__ import annotations

from swarm.sapo.mixing.base import Candidate, Claim, Decision, History, MixPolicy, MixRound, MixState
from swarm.sapo.mixing.config import MixSettings
from swarm.sapo.mixing.draw import AuthorOf, Mix, Screen, authors, authors_of, fair_part, in_random_order, mix
from swarm.sapo.mixing.mixer import Mixer, Wishes, mix_figures

__all__ = [
    "AuthorOf",
    "Candidate",
    "Claim",
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
    "authors_of",
    "fair_part",
    "in_random_order",
    "mix",
    "mix_figures",
]
