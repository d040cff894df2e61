"""Headway: Apache Kafka as a work queue."""
