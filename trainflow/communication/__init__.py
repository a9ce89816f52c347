"""How tensors cross the wire. torch, no Ray."""
