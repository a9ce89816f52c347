"""Tell what a run does: names of what is measured, and how it leaves the process."""
