"""What a verification worker may still do: no network, no files but Python's, bounded memory and processes.

Linux only in full; `confinement.py` reports what holds on this machine.
"""
