#!/usr/bin/env bash
# Make the secrets of docker-compose.yml, each in a file of its own. One that is there is kept.
#
#     deploy/make_secrets.sh [FOLDER]
#
# Containers read them as several users, so the files can be read by all; the folder can't.
set -euo pipefail

folder="${1:-$(dirname "${BASH_SOURCE[0]}")/secrets}"
install -d -m 700 "$folder"
for name in store_user store_password database_password grafana_password ray_token alert_receiver_token; do
    path="$folder/$name"
    [ -s "$path" ] && continue
    # 32 hexadecimal digits: none that a URL would have to escape.
    od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$path"
    chmod 644 "$path"
    echo "made $path"
done
