#!/usr/bin/env bash
# Starts PostgreSQL with TLS; pg_hba.conf beside this file takes nobody without it.
set -euo pipefail
umask 077
# The server wants its key for itself alone, and the files of secrets are readable by all (in this container).
mkdir -p /tmp/tls
cp /run/secrets/postgres_crt /tmp/tls/server.crt
cp /run/secrets/postgres_key /tmp/tls/server.key
if [ "$(id -u)" = 0 ]; then
  chown -R postgres /tmp/tls /var/run/postgresql # both are new at each start
fi
POSTGRES_PASSWORD=$(cat /run/secrets/postgres_admin_password)
export POSTGRES_PASSWORD
exec docker-entrypoint.sh postgres -c ssl=on -c ssl_cert_file=/tmp/tls/server.crt -c ssl_key_file=/tmp/tls/server.key \
  -c ssl_min_protocol_version=TLSv1.2 -c password_encryption=scram-sha-256 -c hba_file=/etc/muster/pg_hba.conf
