"""State outside of the ranks that compute it: snapshots, their format, stores, and restoring."""
