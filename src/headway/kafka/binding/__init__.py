"""Access to librdkafka, the C library behind confluent_kafka: its clients and log, and calls that the binding lacks."""
