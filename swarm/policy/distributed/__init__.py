"""One policy on several devices under torchrun: ranks, and FSDP2 sharding.

Other code uses only `Ranks`, which a single process has as well.
"""
