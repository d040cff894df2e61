"""Spark's own Kafka connector, fetched by its Maven coordinates where they can be had: the baseline."""

from pathlib import Path

from headway.broker.jars import innermost_reason, maven

# Those that are published of 4.3's dependencies, or come nearest.
COORDINATES = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)


def connector_jars() -> list[Path]:
    """The connector's jars; none, with a sentence on the console, where they cannot be had."""
    context = maven()
    jars = []
    for group, artifact, version in COORDINATES:
        try:
            jars.append(Path(context.project(group, artifact).at_version(version).artifact().resolve()))
        except (OSError, RuntimeError) as error:
            print(f"Without Spark's own connector: {artifact} {version} cannot be had ({innermost_reason(error)}).")
            return []
    return jars


def spark_settings() -> dict[str, str]:
    """What a session needs to have the connector; nothing where it cannot be had."""
    jars = connector_jars()
    return {"spark.jars": ",".join(map(str, jars))} if jars else {}
