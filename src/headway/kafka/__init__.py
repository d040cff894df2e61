"""Everything that communicates with Kafka. No other package of Headway imports confluent_kafka."""
