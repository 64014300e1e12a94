#!/bin/sh
# A private PostgreSQL for the tests: `tests/postgres.sh start [DIR]` prints its URL, `tests/postgres.sh stop [DIR]` ends it
# and removes DIR (by default one in /tmp for this checkout and user). It listens on a Unix socket in DIR only, so it needs no
# port and nobody else can reach it. DIR must be short: a socket's path is limited to 107 bytes. One that runs in DIR already
# is used as it is; what a killed one left is removed. GRIDSHIFT_TEST_POSTGRES_FSYNC=on makes it sync, for measurements.
set -eu

usage() { echo "usage: $0 start|stop [DIR]" >&2; exit 2; }
[ $# -eq 1 ] || [ $# -eq 2 ] || usage
here=$(cd "$(dirname "$0")" && pwd)
dir=${2:-/tmp/gspg-$(id -u)-$(printf %s "$here" | cksum | cut -d' ' -f1)}
case $dir in /*) ;; *) dir=$(pwd)/$dir ;; esac

bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
[ -n "$bin" ] || bin=$(dirname "$(command -v initdb || true)")
[ -x "$bin/initdb" ] || { echo "$0: PostgreSQL's server is not installed (Debian: apt-get install postgresql)" >&2; exit 1; }

# The server refuses to run as root.
as() { if [ "$(id -u)" -eq 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi; }

url="postgresql+psycopg://postgres@/postgres?host=$dir"
case $1 in
start)
    if [ -f "$dir/data/PG_VERSION" ]; then
        if as "$bin/pg_ctl" -D "$dir/data" status >/dev/null; then
            echo "$url"
            exit 0
        fi
        rm -rf "$dir"
    fi
    [ ! -e "$dir" ] || { echo "$0: $dir exists already and holds no PostgreSQL of ours" >&2; exit 1; }
    mkdir -m 700 "$dir"  # whoever may enter may connect, and nobody else
    [ "$(id -u)" -ne 0 ] || chown postgres "$dir"
    cd "$dir"
    as "$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --no-sync >"$dir/initdb.log" 2>&1 || { cat "$dir/initdb.log" >&2; exit 1; }
    as "$bin/pg_ctl" -D "$dir/data" -w -t 60 -l "$dir/log" \
        -o "-c listen_addresses='' -c unix_socket_directories='$dir' -c fsync=${GRIDSHIFT_TEST_POSTGRES_FSYNC:-off} -c max_connections=100" \
        start >/dev/null || { cat "$dir/log" >&2; exit 1; }
    echo "$url"
    ;;
stop)
    [ -f "$dir/data/PG_VERSION" ] || { echo "$0: $dir holds no PostgreSQL of ours" >&2; exit 1; }
    cd /
    as "$bin/pg_ctl" -D "$dir/data" -m immediate -w stop >/dev/null || true
    rm -rf "$dir"
    ;;
*) usage ;;
esac
