"""Where peers are: multiaddrs, bootstrap lists, DNS, NAT, and what strangers say of others' addresses.

Nothing here knows a run or its members.
"""
