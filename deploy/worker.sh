#!/usr/bin/env bash
# A node that trains. It ends with its raylet, and is started again.
set -euo pipefail

exec ray start --address head:6379 --metrics-export-port 8080 --disable-usage-stats --block
