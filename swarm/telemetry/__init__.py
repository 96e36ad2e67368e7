"""What nodes report and how it is read: no torch, and no decisions.

metrics.jsonl (records, sinks, ledger) ──▶ history, curves ──▶ alerts, benefit ──▶ live, report, nodes (for the page)
"""
