"""One module per source of questions: ReasoningGYM, data sets from the hub or a file.

Modules import their libraries on first use. Grading is in `scoring/`.
"""
