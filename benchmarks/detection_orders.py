"""Have a rank of a run do to itself what can't be done from outside, and learn when it did.

Process: the benchmark gives orders, ranks take them.  Blocks: on the local disk.
"""

from pathlib import Path

from trainflow.clock import SYSTEM_CLOCK

DATA_STALLS = "data_stalls"
HANGS = "hangs"
MISCALCULATES = "miscalculates"


def give(folder: Path, what: str, rank: int) -> Path:
    """Order it of a rank; returns the file that says when it was done, once it was."""
    done = _order(folder, what, rank).with_suffix(".done")
    done.unlink(missing_ok=True)
    _order(folder, what, rank).touch()
    return done


def take(folder: Path, what: str, rank: int | None) -> bool:
    """Tell whether this rank is to do it now; an order is taken once."""
    order = _order(folder, what, rank)
    if not order.exists():
        return False
    # Whole at once: the benchmark reads it as soon as it is there.
    taken = order.with_suffix(".taken")
    taken.write_text(str(SYSTEM_CLOCK.unix_s()))
    order.unlink()
    taken.rename(order.with_suffix(".done"))
    return True


def read_time(done: Path) -> float | None:
    """Return when an order was done, by CLOCK_REALTIME; None if it wasn't yet."""
    return float(done.read_text()) if done.exists() else None


def _order(folder: Path, what: str, rank: int | None) -> Path:
    return folder / f"{what}-{rank}"
