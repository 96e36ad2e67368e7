"""What a run reports: metrics, ledger, history, live view, report and plots.

Nodes write it, readers use the files; no torch, and no decisions.
"""
