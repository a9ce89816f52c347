"""The systems that TrainFlow is measured beside, each with its own recovery, on the same workload.

- ``events``: what a training process writes down as it goes, and how the harness reads it
- ``samples``: pure: from events and kills to recovery figures
- ``killing``: the harness: kill a member at a random phase of its step, wait, again
- ``processes``: measured processes that never outlive the harness
- ``ray_train``, ``torchft_ddp``: the peers; each has ``measure(num_kills, seed, work_dir)`` and
  runs alone
"""

import os

os.environ.setdefault("RUST_LOG", "error")  # of torchft's Rust part, read when it is imported
