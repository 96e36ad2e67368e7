"""Membership of a run: joining, dialling, upkeep of connections and records.

Independent of the network library: both backends run these loops.
"""
