"""Find answers in completions and compare them with references without evaluating them: guards, parsers, scorers.

Answers are foreign text. `docs/security.md` lists what reaches which scorer.
"""
