"""HTTP in and out: what a run tells, kept and shown after it has ended. No tensors."""
