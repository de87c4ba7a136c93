"""Profiles become rows: where the time of a case goes, by layer and by module; pure functions, nothing is read.

What is computed here is in seconds and for each run first: a sum over layers is summed run by run, and its median is
the median of these sums. A sum of medians is none.
"""
