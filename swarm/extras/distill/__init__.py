"""Distillation over text between owners who share neither weights nor tokenizer: a teacher's opinion of a student's own
answers, as log-probabilities of spans of bytes, becomes one more advantage of the student's tokens."""
