"""Policies: pure decisions on a picture of the world. No clock, no database, no Ray, no unseeded randomness."""
