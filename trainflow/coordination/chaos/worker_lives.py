"""How long the workers of a run were there, by the events that tell of them alone. Pure.

It is what the ledger's causes must add up to, and is found without it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]


def find_lives(events: Sequence[Line], end_s: float) -> dict[str, float]:
    """Return the seconds for which each worker was there, from when it was asked for.

    Args:
        events: of one attempt, in their order.
        end_s: when the run was over, and with it who was left.
    """
    begun_s: dict[str, float] = {}
    told_s: dict[str, float] = {}
    missed_s: dict[str, float] = {}
    submitted_s = 0.0
    for event in events:
        data: Line = event["data"]
        at_s: float = event["at_s"]
        match event["kind"]:
            case "submitted":
                submitted_s = at_s
            case "launched":
                begun_s |= dict.fromkeys(data["workers"], submitted_s)
            case "respawned":
                begun_s[data["worker"]] = at_s
            case "failure" | "withdrawn" if "worker" in data:
                told_s.setdefault(data["worker"], at_s)
            case "coordinator_restarted":
                missing = begun_s.keys() - set(data["workers"])
                missed_s = dict.fromkeys(missing, at_s) | missed_s
            case _:
                pass
    ended_s = missed_s | told_s
    return {worker: ended_s.get(worker, end_s) - since_s for worker, since_s in begun_s.items()}


def compare_ledger(events: Sequence[Line]) -> tuple[float, float] | None:
    """Return what the ledger has causes for, and how long workers were there, in seconds.

    None if the run told of no ledger at its end.
    """
    told = next((event for event in reversed(events) if event["kind"] == "goodput"), None)
    if told is None:
        return None
    charged_s = sum(told["data"]["seconds"].values())
    return charged_s, sum(find_lives(events, told["at_s"]).values())
