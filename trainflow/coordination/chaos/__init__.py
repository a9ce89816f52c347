"""Campaigns of faults: what is to fall on a run, doing it, and judging what the run came to."""
