"""One policy on several devices under torchrun: ranks, and FSDP2 sharding.

Everything else sees only `Ranks`, which a single process has as well.
"""
