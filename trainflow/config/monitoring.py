"""What a job tells while it runs, and to whom: the section ``monitoring``.

Process: any.  Pure: plain values in, a frozen configuration out.
"""

from pydantic import Field, PositiveInt

from trainflow.config.anomalies import AnomaliesConfig
from trainflow.config.problems import Problem, show
from trainflow.config.section import Section
from trainflow.config.sinks import SinkConfig, find_repeated
from trainflow.config.webhook import GrafanaConfig, WebhookConfig


class MonitoringConfig(Section):
    """What the job tells while it runs."""

    enabled: bool = True
    """Whether anything explains the run beside its own record: metrics, the ledger of its time,
    anomalies, sinks, a webhook, marks in Grafana."""

    log_every_steps: PositiveInt = 1
    """Steps between two lines of progress."""

    digest_every_steps: PositiveInt | None = None
    """Steps between two records of a digest of every tensor, for ``trainflow bisect``; null: none.
    Those of a step's gradients as a whole, and of checkpoints' tensors, are there in any case."""

    anomalies: AnomaliesConfig = AnomaliesConfig()
    """What is looked for in losses and gradient norms."""

    sinks: list[SinkConfig] = Field(default_factory=list[SinkConfig])
    """Where curves go beside the run's own record: TensorBoard, Weights & Biases, MLflow."""

    webhook: WebhookConfig | None = None
    """Who is told of events by HTTP, where no Prometheus alerts; null: nobody."""

    grafana: GrafanaConfig | None = None
    """Where failures and recoveries are marked; null: nowhere."""

    def conflicts(self, job_name: str, *, makes_checkpoints: bool) -> list[Problem]:
        """Return which settings would do nothing, for want of another, or twice the same.

        Args:
            job_name: names the project of a sink that names none.
            makes_checkpoints: while the job goes on.
        """
        if self.enabled:
            anomalies = self.anomalies.conflicts(makes_checkpoints=makes_checkpoints)
            return [*anomalies, *find_repeated(self.sinks, job_name)]
        receivers = {"sinks": self.sinks, "webhook": self.webhook, "grafana": self.grafana}
        unheard = [name for name, value in receivers.items() if value]
        fields = AnomaliesConfig.model_fields.items()
        unread = {name: getattr(self.anomalies, name) for name, _ in fields if name != "enabled"}
        usual = {name: field.default for name, field in fields}
        return [
            *(_useless(name, "a setting") for name in unheard),
            *(
                _useless(f"anomalies.{name}", show(value))
                for name, value in unread.items()
                if value != usual[name]
            ),
        ]


def _useless(name: str, got: str) -> Problem:
    expected = "nothing where monitoring.enabled is false"
    change = "leave it out, or set monitoring.enabled to true"
    return Problem(f"monitoring.{name}", got, expected, change)
