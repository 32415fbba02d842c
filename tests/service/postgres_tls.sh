#!/usr/bin/env bash
# A service on a PostgreSQL that takes TLS alone, through a stunnel that checks its certificate, as docs/operate/database.md says: postgres_tls.sh BATCHFIT.
# Starts all of it for itself, in a temporary folder on loopback. Needs what postgres.sh needs, openssl, curl and Debian's stunnel4.
set -euo pipefail
binary=$(realpath "$1")
bin=$(dirname "$(compgen -G '/usr/lib/postgresql/*/bin/initdb' | sort -V | tail -n 1 || command -v initdb || echo /nowhere)")
[ -x "$bin/initdb" ] && command -v stunnel >/dev/null || { echo "left out: PostgreSQL or stunnel is not here"; exit 0; }

folder=$(mktemp -d)
chmod 755 "$folder"
as=()
[ "$(id -u)" != 0 ] || { chown postgres "$folder"; as=(setpriv --reuid=postgres --regid=postgres --init-groups); }
begun=()
end() {
  for one in "${begun[@]}"; do kill "$one" 2>/dev/null || true; done
  "${as[@]}" "$bin/pg_ctl" --pgdata "$folder/data" --mode immediate --silent stop || true
  rm -rf "$folder"
}
trap end EXIT
free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
fails() { echo "FAILED: $1"; tail -n 5 "$folder"/*.log; exit 1; }
until_it() { local left=300; until "$@" >/dev/null 2>&1; do left=$((left - 1)); [ "$left" -gt 0 ] || fails "waited in vain for: $*"; sleep 0.2; done; }

# An authority, another one, and a certificate of the first for db.example.org.
for authority in ours other; do
  openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=$authority" -keyout "$folder/$authority.key" -out "$folder/$authority.pem" 2>/dev/null
done
openssl req -newkey rsa:2048 -nodes -subj /CN=db.example.org -keyout "$folder/server.key" -out "$folder/server.csr" 2>/dev/null
openssl x509 -req -in "$folder/server.csr" -CA "$folder/ours.pem" -CAkey "$folder/ours.key" -CAcreateserial -days 2 \
  -extfile <(echo subjectAltName=DNS:db.example.org) -out "$folder/server.pem" 2>/dev/null
chmod 600 "$folder/server.key"
[ "$(id -u)" != 0 ] || chown postgres "$folder/server.key"

port=$(free)
printf secret >"$folder/password"
"${as[@]}" "$bin/initdb" --pgdata "$folder/data" --username batchfit --pwfile "$folder/password" --auth scram-sha-256 --encoding UTF8 --no-sync >"$folder/initdb.log"
printf 'hostssl all all 127.0.0.1/32 scram-sha-256\n' >"$folder/data/pg_hba.conf"
"${as[@]}" "$bin/pg_ctl" --pgdata "$folder/data" --log "$folder/postgres.log" --wait --silent --options "-p $port -c listen_addresses=127.0.0.1 \
  -c unix_socket_directories= -c fsync=off -c ssl=on -c ssl_cert_file=$folder/server.pem -c ssl_key_file=$folder/server.key" start
export PGPASSWORD=secret HOME=$folder

# tunnel NAME AUTHORITY HOST: a stunnel that speaks TLS with the database if its certificate is that authority's and for that host.
tunnel() {
  local accept
  accept=$(free)
  printf 'foreground = yes\npid =\noutput = %s\n[db]\nclient = yes\nprotocol = pgsql\naccept = 127.0.0.1:%s\nconnect = 127.0.0.1:%s\nverifyChain = yes\nCAfile = %s\ncheckHost = %s\n' \
    "$folder/$1.log" "$accept" "$port" "$folder/$2.pem" "$3" >"$folder/$1.conf"
  stunnel "$folder/$1.conf" 2>/dev/null &
  begun+=($!)
  until_it bash -c "exec 3<>/dev/tcp/127.0.0.1/$accept"
  at=$accept
}
# serve NAME PORT: a service on the database at this port, and its address in `url`.
serve() {
  local listen
  listen=$(free)
  url=http://127.0.0.1:$listen
  "$binary" serve --listen "127.0.0.1:$listen" --database "postgres://batchfit@127.0.0.1:$2/postgres" >"$folder/serve-$1.log" 2>&1 &
  service=$!
  begun+=("$service")
}

# As it is, and as the database wants it: refused, and told why.
if said=$("$binary" db check --database "postgres://batchfit@127.0.0.1:$port/postgres?sslmode=require" 2>&1); then fails "TLS was said to be built in"; fi
grep -qi tls <<<"$said" || fails "a refusal that says TLS: $said"
if "$binary" db check --database "postgres://batchfit@127.0.0.1:$port/postgres" >"$folder/plain.log" 2>&1; then fails "PostgreSQL took a connection without TLS"; fi
# A certificate of another authority, or for another host: nothing is sent to it.
for wrong in "other db.example.org" "ours elsewhere.example.org"; do
  read -r authority host <<<"$wrong"
  tunnel "wrong-$authority" "$authority" "$host"
  if "$binary" db check --database "postgres://batchfit@127.0.0.1:$at/postgres" >"$folder/check.log" 2>&1; then fails "$wrong was let in"; fi
done
echo "refused: without TLS, an authority that is not known, a certificate for another host"

tunnel right ours db.example.org
serve right "$at"
until_it curl -fsS "$url/readyz"
answer=$(curl -fsS -H 'Prefer: wait=60' "$url/v1/fits" -d '{"model": {"preset": "resnet18"}, "device": "sim:h200"}')
grep -q '"state":"done"' <<<"$answer" || fails "an answer: $answer"
grep -q 'Certificate accepted .*CN=db.example.org' "$folder/right.log" || fails "stunnel tells of a certificate that it checked"
echo "a fit was asked, answered and stored over TLS, with a certificate that was checked"
kill -TERM "$service"
wait "$service" || fails "the service ends with $?"
