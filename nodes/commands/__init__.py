"""One module per subcommand that is not a role: doctor, peers, demo, evaluate, ...

Commands may start roles; roles do not import commands.
"""
