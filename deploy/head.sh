#!/usr/bin/env bash
# The head of the cluster, and the service on it. Members and spares are on the other nodes.
set -euo pipefail

address="$(hostname -i)"
# Drivers of jobs inherit what Ray has in its environment: that is not the database's password.
env -u TRAINFLOW_DATABASE_URL ray start --head --node-ip-address "$address" --port 6379 --num-cpus 0 \
    --dashboard-host 0.0.0.0 --metrics-export-port 8080 --disable-usage-stats
exec trainflow serve --address "$address:6379"
