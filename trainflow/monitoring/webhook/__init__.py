"""Tell a server of a run's events, without making the run wait."""
