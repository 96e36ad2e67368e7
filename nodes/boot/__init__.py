"""The start of a node: resolve what it is to be, assemble its parts, run its steps.

manifest.py, directory.py    what a run, and a node's directory, are; light, and below `nodes/roles/`
resolve.py                   configuration, run and directory ─▶ ResolvedNode; no console, no network
assemble.py                  opens network, verification, page and role; the only place, also for `swarm.Node`
loop.py                      `launch`: steps until done or stopped, and lines for people
"""
