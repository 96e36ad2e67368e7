"""Answers that are programs: a question's tests, run in WebAssembly.

    answer ──▶ program ──▶ interpreter: what calls return, what is printed ──▶ compared here with what is expected

What is expected never enters the interpreter, so a program can only pass a test by computing its answer.
"""
