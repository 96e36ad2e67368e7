"""The sandbox of verification workers: no network, only Python's own files, bounded memory and processes.

Complete on Linux only; `confinement.py` reports which protections hold on this machine.
"""
