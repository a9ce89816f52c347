#!/usr/bin/env bash
# Read what Ray, the store and the database want in the environment from files, and run a command.
set -euo pipefail

read_secret() {
    local path="/run/secrets/$1"
    [ -s "$path" ] || { echo "got no $path, expected a secret: run deploy/make_secrets.sh" >&2; exit 2; }
    cat "$path"
}

AWS_ACCESS_KEY_ID="$(read_secret store_user)"
AWS_SECRET_ACCESS_KEY="$(read_secret store_password)"
export AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY

# The head's alone.
if [ "${TRAINFLOW_DATABASE_HOST:-}" ]; then
    password="$(read_secret database_password)"
    export TRAINFLOW_DATABASE_URL="postgresql://trainflow:$password@$TRAINFLOW_DATABASE_HOST:5432/trainflow"
fi

exec "$@"
