"""All dashboards. Pure."""

from trainflow.monitoring.dashboards.checkpoints import CHECKPOINTS
from trainflow.monitoring.dashboards.cluster import CLUSTER
from trainflow.monitoring.dashboards.communication import COMMUNICATION
from trainflow.monitoring.dashboards.overview import OVERVIEW
from trainflow.monitoring.dashboards.recovery import RECOVERY
from trainflow.monitoring.dashboards.training import TRAINING

DASHBOARDS = (OVERVIEW, TRAINING, COMMUNICATION, CHECKPOINTS, RECOVERY, CLUSTER)
"""In the order in which they are listed."""
