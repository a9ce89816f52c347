"""Measurements of TrainFlow beside its peers; run from the repository root."""
