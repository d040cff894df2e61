"""The way from `send` to librdkafka's producer, and its delivery reports."""
