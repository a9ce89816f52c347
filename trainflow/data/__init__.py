"""What a rank trains on: packed tokens, a global order of samples, and microbatches read ahead.

The order is a pure function of (seed, pass, position), so the only thing that moves as training
goes on is one number: how many samples were consumed. Knows nothing of ranks' processes, Ray or the
network.
"""
