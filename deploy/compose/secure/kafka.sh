#!/usr/bin/env bash
# Starts a broker (KRaft, one node) that talks to nobody without TLS and an identity:
#
#   CLIENT      9092, all addresses  SASL_SSL, SCRAM-SHA-512; its users may do what an access list allows
#   BROKER      9094, loopback       TLS with the broker's own certificate: the broker itself, and its administrator
#   CONTROLLER  9093, loopback       the same
#
# At each start it gives the user muster the password of /run/secrets/kafka_password, and the rights that Muster needs.
# /tmp/granted is there when both are done. Administration: docker compose exec kafka bash /etc/muster/kafka.sh CLASS ARGS,
# for instance org.apache.kafka.tools.TopicCommand --list.
set -euo pipefail
umask 077
kafka=/opt/kafka data=/var/lib/kafka/data conf=/tmp/server.properties admin=/tmp/admin.properties
prefix=${MUSTER_TOPIC_PREFIX:-}

run() { # CLASS ARGS: a tool of Kafka, quietly
  java -Xmx192m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j.configuration=file:/tmp/log4j.properties \
    -Dlog4j2.configurationFile=/tmp/log4j2.properties -cp "$kafka/libs/*" "$@"
}
asked() { # CLASS ARGS: the same, against the running broker
  run "$1" --bootstrap-server localhost:9094 --command-config "$admin" "${@:2}"
}

if [ $# -gt 0 ]; then
  asked "$@"
  exit
fi

rm -f /tmp/granted
printf '%s\n' 'log4j.rootLogger=WARN, out' 'log4j.appender.out=org.apache.log4j.ConsoleAppender' \
  'log4j.appender.out.layout=org.apache.log4j.PatternLayout' \
  'log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n' >/tmp/log4j.properties
printf '%s\n' 'rootLogger.level=warn' 'rootLogger.appenderRef.out.ref=out' 'appender.out.type=Console' \
  'appender.out.name=out' 'appender.out.layout.type=PatternLayout' \
  'appender.out.layout.pattern=[%d] %p %m (%c)%n' >/tmp/log4j2.properties

tls="ssl.keystore.type=PEM
ssl.keystore.location=/run/secrets/kafka_pem
ssl.truststore.type=PEM
ssl.truststore.location=/run/secrets/ca"
cat >"$conf" <<END
node.id=1
process.roles=broker,controller
controller.listener.names=CONTROLLER
controller.quorum.voters=1@localhost:9093
inter.broker.listener.name=BROKER
listeners=CLIENT://:9092,BROKER://localhost:9094,CONTROLLER://localhost:9093
advertised.listeners=CLIENT://${KAFKA_NAME:-kafka}:9092,BROKER://localhost:9094
listener.security.protocol.map=CLIENT:SASL_SSL,BROKER:SSL,CONTROLLER:SSL
$tls
ssl.enabled.protocols=TLSv1.3,TLSv1.2
listener.name.broker.ssl.client.auth=required
listener.name.controller.ssl.client.auth=required
ssl.principal.mapping.rules=RULE:^CN=([^,]+).*\$/\$1/
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.client.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:kafka
log.dirs=$data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=2000
max.connections=2000
END
printf '%s\nsecurity.protocol=SSL\n' "$tls" >"$admin"

grant() {
  # (A file, because everybody sees a process's arguments.)
  printf 'SCRAM-SHA-512=iterations=8192,password=%s\n' "$password" >/tmp/scram
  until asked kafka.admin.ConfigCommand --alter --entity-type users --entity-name muster --add-config-file /tmp/scram; do
    sleep 1 # the broker is starting
  done
  rm /tmp/scram
  local acl=(kafka.admin.AclCommand --add --allow-principal User:muster --resource-pattern-type prefixed)
  asked "${acl[@]}" --topic "${prefix}si." \
    --operation Create --operation Describe --operation DescribeConfigs --operation Read --operation Write
  asked "${acl[@]}" --transactional-id "${prefix}scheduler." --operation Write
  asked "${acl[@]/prefixed/literal}" --group "${prefix}scheduler" --group "${prefix}event-publisher" \
    --group "${prefix}muster-derive" --operation Read
  touch /tmp/granted
}

password=$(tr -d '\r\n' </run/secrets/kafka_password)
[ -e "$data/meta.properties" ] || run kafka.tools.StorageTool format -t "${CLUSTER_ID:?}" -c "$conf"
# What Kafka's tools say may have the password in it.
(grant 2>&1 || kill $$) | sed -u "s/$password/***/g" >&2 &
# shellcheck disable=SC2086 - the options are words
exec java ${KAFKA_HEAP_OPTS:--Xms512m -Xmx1g} -server -XX:+UseG1GC -Dlog4j.configuration=file:/tmp/log4j.properties \
  -Dlog4j2.configurationFile=/tmp/log4j2.properties -cp "$kafka/libs/*" kafka.Kafka "$conf"
