"""The only importer of confluent_kafka."""
