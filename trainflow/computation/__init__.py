"""What one rank does in one step. torch, no Ray."""
