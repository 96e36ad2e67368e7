"""Distillation over text: a student with a teacher, without, and with liars."""
