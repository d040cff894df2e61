"""The demo: real flights by priority through a real Apache Kafka, and then through Spark."""
