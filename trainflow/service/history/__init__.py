"""What became of every job, in a database that outlives Ray."""
