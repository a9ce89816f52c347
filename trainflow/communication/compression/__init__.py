"""Sums of gradients that send less than the gradients."""
