"""One module a source of questions: ReasoningGYM, data sets from the hub or a file.

They import their libraries when first used. Grading is in `scoring/`.
"""
