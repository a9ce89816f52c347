"""``trainflow doctor``: what is wrong with a set-up, before a job finds out."""
