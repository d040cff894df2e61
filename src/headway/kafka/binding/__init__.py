"""The C library behind confluent_kafka: its clients, calls that its binding lacks, its log."""
