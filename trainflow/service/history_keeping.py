"""Keep the history: read in what jobs have written, and notice those that came to nothing.

One process does it, whichever number of replicas answers. It holds nothing: what it has read is in
the database, and another one goes on where it was.

Process: the one that keeps the history.  Thread: its own.  Blocks: on the disk, the history and the
cluster.
"""

import logging
import threading

from trainflow.clock import Clock
from trainflow.errors import TrainFlowError
from trainflow.service.cluster import Cluster
from trainflow.service.history.history import History
from trainflow.service.submission_watch import SubmissionWatch

logger = logging.getLogger(__name__)

_WATCH_EVERY_S = 5.0
