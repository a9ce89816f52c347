"""Changes of the tables, from release to release."""
