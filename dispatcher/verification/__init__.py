"""Measurement and verification of demand response: what a site drew, what it would have drawn, what that was worth.

Everything here is pure: series and facts in, values out; no clock, no store, no network. See README.md in this folder.
"""
