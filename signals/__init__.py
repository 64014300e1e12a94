"""Signals: what power costs and emits, when, and how well that is known. Imports nothing else of gridshift."""
