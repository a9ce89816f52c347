"""The service on a Ray cluster: its replicas, and what it asks of Ray."""
