"""What do gradients cost on the wire? Pure."""

from trainflow.monitoring import metrics
from trainflow.monitoring.dashboards.panel import (
    ASK,
    Curve,
    Dashboard,
    Look,
    Panel,
    Unit,
    curve,
    number,
)

_STEPS = ASK.rate(metrics.STEPS_COMMITTED)
_SENT = ASK.rate(metrics.GRADIENT_WIRE_BYTES)
_PLAIN = ASK.rate(metrics.GRADIENT_PLAIN_BYTES)
_LINK_S = ASK.rate(metrics.GRADIENT_SUM_SECONDS, where='phase="link"')
_COMMUNICATE_S = ASK.rate(metrics.PHASE_SECONDS, where='phase=~"communicate|commit"')
_WAIT_S = ASK.rate(metrics.PHASE_SECONDS, where='phase="wait"')
_ALL_S = ASK.rate(metrics.PHASE_SECONDS)

_NOW = (
    Panel(
        "Share of a step spent communicating",
        "Would a faster network, or compression, make training faster? Without waiting for ranks "
        "that come later.",
        curve(f"{_COMMUNICATE_S} / {_ALL_S}"),
        number(Unit.SHARE),
    ),
    Panel(
        "Compressed to",
        "To what share of their size do gradients come on the wire?",
        curve(f"{_SENT} / {_PLAIN}"),
        number(Unit.SHARE),
    ),
    Panel(
        "Sent by all ranks",
        "How much does the network carry for this job?",
        curve(ASK.rate(metrics.WIRE_BYTES)),
        number(Unit.BYTES_A_SECOND),
    ),
    Panel(
        "Slow kernels",
        "Does some rank compress in plain torch? 1 if so.",
        curve(ASK.latest(metrics.SLOW_KERNELS)),
        number(),
    ),
)

_WIRE = (
    Panel(
        "Bytes of a step",
        "How much does a step send, and how much would it without compression? Of rank 0.",
        (
            Curve(f"{_SENT} / {_STEPS}", "sent"),
            Curve(f"{_PLAIN} / {_STEPS}", "without compression"),
        ),
        Look(unit=Unit.BYTES),
    ),
    Panel(
        "Rate while on the link",
        "What bandwidth do sums of gradients get? Of rank 0, over the time that they are on the "
        "link alone; half of it is a network that others use, or a card that has fallen back.",
        curve(f"{_SENT} / {_LINK_S}"),
        Look(unit=Unit.BYTES_A_SECOND),
    ),
    Panel(
        "Sums of gradients, by phase",
        "Is it the link that takes long, or compressing before and after it?",
        curve(
            f"{ASK.rate(metrics.GRADIENT_SUM_SECONDS, 'phase')} / on (job) group_left () {_STEPS}",
            "{{phase}}",
        ),
        Look(unit=Unit.SECONDS, is_stacked=True),
    ),
    Panel(
        "What computing does not hide",
        "How much shorter would a step be if communication took no time? What the rank waited that "
        "came last.",
        curve(ASK.latest(metrics.SHORTEST_WAIT)),
        Look(unit=Unit.SECONDS),
    ),
    Panel(
        "Waiting for slower ranks",
        "What share of its time does rank 0 wait for ranks that come later? No network makes that "
        "less; the dashboard Cluster tells who they are.",
        curve(f"{_WAIT_S} / {_ALL_S}"),
        Look(unit=Unit.SHARE),
    ),
    Panel(
        "Latency",
        "How long does the smallest collective take, the exchange of commit records?",
        curve(ASK.latest(metrics.LATENCY)),
        Look(unit=Unit.SECONDS),
    ),
    Panel(
        "Left out by compression",
        "Does what compression leaves out stay small beside the gradients?",
        curve(ASK.latest(metrics.RESIDUAL)),
        Look(unit=Unit.SHARE, absent="nothing is left out"),
    ),
    Panel(
        "Sums that failed",
        "Do connections break although nobody dies?",
        curve(ASK.new(metrics.FAILURES, where='cause="collective"'), "failed"),
    ),
)

COMMUNICATION = Dashboard(
    "trainflow-communication",
    "TrainFlow / Communication",
    "What do gradients cost on the wire, and is it worth compressing them?",
    {"Now": _NOW, "The wire": _WIRE},
)
