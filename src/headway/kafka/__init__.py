"""Everything that talks to Kafka: the only part of Headway that imports confluent_kafka."""
