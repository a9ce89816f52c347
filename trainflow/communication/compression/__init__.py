"""Sums of gradients that send less than the gradients: quantised, sparse, of low rank."""
