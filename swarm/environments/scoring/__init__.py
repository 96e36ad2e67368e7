"""Comparing answers with references without ever evaluating them: guards, parsers, scorers.

Answers are text of strangers. `docs/scorers.md` says what reaches which scorer.
"""
