#!/usr/bin/env bash
# Runs the tests of the store, of the queue and of several servers on a server of PostgreSQL that it starts for itself, in a
# temporary folder, on a Unix socket, and ends: nothing of the machine's changes. Needs PostgreSQL 14 or newer, by Debian's name
# `postgresql`; as root, also its user `postgres`, because PostgreSQL does not run as root.
#
#   tests/service/postgres.sh                     all of it
#   tests/service/postgres.sh COMMAND...          that command, with BATCHFIT_TEST_POSTGRES in its environment
#
# `cargo test` runs the same tests with SQLite, and lists those of several servers as ignored.
set -euo pipefail
cd "$(dirname "$0")/../.."

bin=$(dirname "$(compgen -G '/usr/lib/postgresql/*/bin/initdb' | sort -V | tail -n 1 || command -v initdb)")
[ -x "$bin/initdb" ] || { echo "there is no PostgreSQL here: apt-get install postgresql" >&2; exit 1; }

folder=$(mktemp -d)
as=()
if [ "$(id -u)" = 0 ]; then
  chown postgres "$folder"
  as=(setpriv --reuid=postgres --regid=postgres --init-groups)
fi
end() {
  "${as[@]}" "$bin/pg_ctl" --pgdata "$folder/data" --mode immediate --silent stop || true
  rm -rf "$folder"
}
trap end EXIT
"${as[@]}" "$bin/initdb" --pgdata "$folder/data" --username batchfit --auth trust --encoding UTF8 --no-sync >"$folder/initdb.log"
"${as[@]}" "$bin/pg_ctl" --pgdata "$folder/data" --log "$folder/log" --wait --silent \
  --options "-c listen_addresses= -c unix_socket_directories=$folder -c fsync=off -c max_connections=500" start
chmod 755 "$folder"
export BATCHFIT_TEST_POSTGRES="postgres:///postgres?host=$folder&user=batchfit"
"$bin/postgres" --version

if [ $# -gt 0 ]; then
  "$@"
  exit
fi

cargo test --locked -p batchfit -p batchfit-store --lib
# Left out is what is about files, what takes its database from the command line, and what is about the one server of a file: the next one
# takes its fits at once, and events have other numbers.
cargo test --locked --test it -- --include-ignored http:: \
  --skip http::storage --skip http::maintenance --skip http::process --skip http::page \
  --skip http::restart --skip http::graphs::kept --skip http::events::after_a_restart \
  --skip http::events::a_fit_is_told_from_the_queue --skip http::events::what_is_no_number
