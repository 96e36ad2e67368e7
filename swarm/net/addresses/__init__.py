"""Peer addresses: multiaddrs, bootstrap lists, DNS, NAT, and addresses that other peers report.

This package knows nothing of runs and members.
"""
