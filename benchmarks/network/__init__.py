"""Measured here."""
