"""The form of an answer: numbers as they are written, shapes of expressions, and what the question has of both."""
