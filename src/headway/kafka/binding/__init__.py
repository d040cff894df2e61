"""The C library behind confluent_kafka: its clients, the calls that its binding lacks, its log."""
