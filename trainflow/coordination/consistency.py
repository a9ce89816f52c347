"""What follows for workers whose ranks came to other bits than the others. Pure.

A sum that differs may have changed on its way, or in memory that nothing reads again: the step is
not applied, so that the rank has nothing wrong yet. Gradients of one and the same microbatch that
differ show that it computes wrong, or with wrong parameters.
"""

from collections.abc import Collection, Sequence

MOST_SUMS = 1
"""How often a worker's sums may differ from the majority's before it is given up."""


def decide_losses(
    ranks: Sequence[int], members: Sequence[str], earlier: Sequence[str], *, in_spot_check: bool
) -> tuple[str, ...]:
    """Return the workers that lose their ranks.

    Args:
        ranks: that differ from the majority; all of them where there is none, and nothing tells who
            is at fault.
        members: worker ids by rank.
        earlier: workers whose sums differed before, once for each time.
        in_spot_check: it is gradients of one microbatch that differ.
    """
    if len(ranks) == len(members):
        return ()
    blamed = [members[rank] for rank in ranks]
    return tuple(w for w in blamed if in_spot_check or earlier.count(w) >= MOST_SUMS)


def describe_difference(
    ranks: Collection[int], num_members: int, step: int, *, in_spot_check: bool
) -> str:
    """Say which ranks differ, and in what."""
    what = "of a microbatch that all computed" if in_spot_check else "after they were summed"
    if len(ranks) == num_members:
        return f"step {step}: gradients {what} differ, and no majority tells on which rank"
    who = f"rank {next(iter(ranks))}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return f"step {step}: {who} came to other gradients {what} than the others"
