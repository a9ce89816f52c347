"""What steps, recoveries and sums of gradients are divided into, where their times are told.

Pure: plain values.
"""

from trainflow.epochs import Phase

WAIT = "wait"
"""Of what a step waits for others: what the rank that came last did not wait. No thread stamps it,
as none knows why a collective takes long; it is told once all ranks have said how long they
waited (`trainflow.computation.phase_times`)."""

STEP_PHASES = (*(phase.value for phase in Phase if phase.is_of_step), WAIT)
"""What a training thread does in a step that counts."""

RECOVERY_PHASES = ("decide", "form", "heal", "step")
"""Of a recovery: until members are asked to form an epoch; until they are released into it; until
all hold its base version; until all have committed a step."""

SUM_PHASES = ("before", "link", "after")
"""Of a sum of gradients: before, on and after the link."""
