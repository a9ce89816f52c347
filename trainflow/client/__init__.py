"""Jobs of TrainFlow from Python, over HTTP: see docs/service.md for what can be asked.

with TrainFlowClient("http://127.0.0.1:8000", token=...) as client:
job = client.submit(Path("job.yaml").read_text(), working_directory="/home/me/project")
for event in client.events(job.job_id):
print(event.text)
print(client.wait(job.job_id).state)
"""

from trainflow.client.async_client import AsyncTrainFlowClient
from trainflow.client.problems import (
    AccessRefusedError,
    JobConflictError,
    RequestRefusedError,
    ServiceError,
    ServiceUnavailableError,
    UnknownJobError,
    UnknownLogError,
    UnknownTraceError,
    WaitedTooLongError,
)
from trainflow.client.sync_client import TrainFlowClient

__all__ = [
    "AccessRefusedError",
    "AsyncTrainFlowClient",
    "JobConflictError",
    "RequestRefusedError",
    "ServiceError",
    "ServiceUnavailableError",
    "TrainFlowClient",
    "UnknownJobError",
    "UnknownLogError",
    "UnknownTraceError",
    "WaitedTooLongError",
]
