#!/bin/sh
# Starts the console by itself, in a container or under systemd. GRIDSHIFT_ADDRESS is the control plane, the file
# GRIDSHIFT_TOKEN_FILE holds an API token for it; the console listens on GRIDSHIFT_CONSOLE_HOST:GRIDSHIFT_CONSOLE_PORT.
# Whoever can reach the console acts with that token: keep it on loopback, or behind a proxy that asks who they are.
set -eu
if [ -n "${GRIDSHIFT_TOKEN_FILE:-}" ]; then
    GRIDSHIFT_TOKEN=$(cat "$GRIDSHIFT_TOKEN_FILE")
    export GRIDSHIFT_TOKEN
fi
exec python -c '
import os
from ui.launch import command

ours = os.environ
port = int(ours.get("GRIDSHIFT_CONSOLE_PORT", "8501"))
argv, env = command(ours.get("GRIDSHIFT_ADDRESS", "http://127.0.0.1:8700"), port, ours.get("GRIDSHIFT_TOKEN"))
argv.append("--server.address=" + ours.get("GRIDSHIFT_CONSOLE_HOST", "127.0.0.1"))
os.execvpe(argv[0], argv, {**ours, **env})
'
