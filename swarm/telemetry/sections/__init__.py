"""Sections of the report that are made of a node's rounds alone: curves of all figures, and traffic.

Each returns HTML; `report.py` puts the page together.
"""
