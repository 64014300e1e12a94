"""Demand-response events as others send them, read into one model. Pure: nothing here acts, asks or looks at a clock."""
