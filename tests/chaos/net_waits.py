"""What tests wait for in runs on hosts in network namespaces."""

from typing import Any

from benchmarks.net_run import NetRun


def has_trained(run: NetRun, num_steps: int) -> bool:
    """Whether so many steps have been committed."""
    return len(run.read("metrics")) >= num_steps


def wait_for_staff(
    run: NetRun, *, num_warm: int, members: int = 3, spares: int = 1
) -> list[dict[str, Any]]:
    """Return the workers once so many have been warm, and are members and spares as is said.

    Before that nobody is asked, as this takes a core that a spare starts on.
    """
    found: list[dict[str, Any]] = []

    def look() -> bool:
        found[:] = run.workers()
        return [each["state"] for each in found] == ["member"] * members + ["spare"] * spares

    run.wait(lambda: len(run.events("warm")) >= num_warm)
    run.wait(look)
    return found
