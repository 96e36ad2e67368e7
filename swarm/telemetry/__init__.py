"""What a run reports: metrics, ledger, history, live view, report and plots.

Written by nodes and read from files; no torch, and nothing that decides anything.
"""
