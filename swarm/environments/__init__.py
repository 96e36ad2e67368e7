"""Sources of questions, and grading of answers.

`config.py`, `specs.py` and `mixture.py` describe the tasks of a run; nothing here depends on a policy or the network.
"""
