"""What the kernel knows of this process's threads, also of those that a library has started.

Process: any.  Thread: any.  Blocks: no.
"""

from pathlib import Path

_TASKS = Path("/proc/self/task")


def thread_ids() -> frozenset[int]:
    """Return the kernel's numbers of all threads of this process."""
    return frozenset(int(thread.name) for thread in _TASKS.iterdir())


def num_runs(threads: frozenset[int], name: str) -> int | None:
    """Count how often those of ``threads`` that have this name have been given a processor.

    Twice the same count: none of them has done anything in between. None if one is to get a
    processor now.

    Raises:
        LookupError: there are none, or they can't be read.
    """
    total: int | None = None
    for thread in threads:
        try:
            lines = (_TASKS / str(thread) / "status").read_text().splitlines()
        except OSError:
            continue  # it has ended, or can't be read: none left is an error
        fields = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if fields["Name"] == name:
            if not fields["State"].startswith("S"):
                return None
            total = (total or 0) + int(fields["voluntary_ctxt_switches"])
    if total is None:
        raise LookupError(f"none of the threads {sorted(threads)} is called {name}")
    return total
