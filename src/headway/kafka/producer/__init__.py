"""Sends records with librdkafka's producer, and processes its delivery reports."""
