"""One module a subcommand that is no role: doctor, peers, demo, evaluate, ...

They may start roles; roles know none of them.
"""
