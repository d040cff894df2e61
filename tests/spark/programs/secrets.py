"""Reads and writes with a login, and shows all that Spark shows of it: plans, progress, its pages, and its own log."""

import json
import sys
import urllib.request
from pathlib import Path

from headway.settings.settings_file import read_properties
from headway.spark import local_session

config, topic, directory = read_properties(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3])
options = {f"kafka.{key}": value for key, value in config.items()}
events = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": directory.as_uri(), "spark.ui.enabled": "true"}
spark = local_session("secrets", events)
spark.sparkContext.setLogLevel("INFO")

read = spark.readStream.format("headway").options(**options, subscribe=topic, levels="1", startingOffsets="earliest")
writer = read.load().selectExpr("value", f"'{topic}-out' as topic").writeStream.format("headway").options(**options)
query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
query.awaitTermination()
query.explain(True)
print(json.dumps(query.recentProgress, default=str))
batch = spark.read.format("headway").options(**options, subscribe=topic, levels="1").load()
batch.explain("extended")
print("rows", batch.count())
pages = ["jobs/", "stages/", "environment/", "SQL/", "StreamingQuery/", "executors/"]
address = str(spark.sparkContext.uiWebUrl)
for page in [*pages, f"api/v1/applications/{spark.sparkContext.applicationId}/environment"]:
    with urllib.request.urlopen(f"{address}/{page}", timeout=30) as answer:  # noqa: S310
        print(answer.read().decode())
spark.stop()
