"""What ranks tell beside steps, as events. Pure."""

from trainflow.computation.profile_order import ProfileFailed, ProfileTrace
from trainflow.computation.reports import (
    CompressionChosen,
    EvaluationReport,
    ResidualsLost,
    WorkDescribed,
)
from trainflow.coordination.profile_list import describe_outcome

EVALUATED, WORK = "evaluated", "work"

Told = (
    EvaluationReport
    | CompressionChosen
    | ResidualsLost
    | WorkDescribed
    | ProfileTrace
    | ProfileFailed
)
"""Of which there are events."""


def describe_report(report: Told) -> tuple[str, str]:
    """Return the kind of its event, and the text."""
    match report:
        case EvaluationReport():
            return EVALUATED, f"step {report.step}: {report.name} {report.value:.5f}"
        case CompressionChosen():
            return "compression_chosen", _tell_choice(report)
        case ResidualsLost():
            ranks = ", ".join(map(str, report.ranks))
            text = (
                f"what compression had left out up to step {report.step} on rank {ranks} is lost: "
                "no memory of a living node has it; error feedback begins there with nothing"
            )
            return "residuals_lost", text
        case WorkDescribed():
            return WORK, _tell_work(report)
        case ProfileTrace() | ProfileFailed():
            return describe_outcome(report)


def _tell_choice(chosen: CompressionChosen) -> str:
    times = ", ".join(f"{name} {each:.4f} s" for name, each in chosen.predicted_s.items())
    return (
        f"{chosen.model}: gradients are sent with compression {chosen.compression}; on "
        f"{chosen.link_bytes_per_s / 1e6:.0f} MB/s a step's sums are predicted to take {times}"
    )


def _tell_work(work: WorkDescribed) -> str:
    peak = "" if work.peak_flops is None else f", of which one does {work.peak_flops:.4g} a second"
    return (
        f"the model computes {work.model_flops:.4g} floating-point operations a token, "
        f"{work.hardware_flops:.4g} with what is recomputed, on {work.device}{peak}"
    )
