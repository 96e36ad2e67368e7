"""The local web page of the nodes on this machine. It reads their directories and writes nothing.

metrics.jsonl, peers.json ──▶ node.py ──▶ alerts.py, sharing.py ──▶ site.py ──▶ app.py ──▶ assets/
samples.jsonl ─────────────────────────────────────────────────────▶ samples.py ─┘
"""
