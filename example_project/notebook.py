"""A notebook for data engineers to copy from: each ``# %%`` starts a cell.

Editors (VS Code, PyCharm, Jupyter with jupytext) show it as a notebook; it also runs as a script:

    PGQUEUE_URL=postgresql://user@host/inbox python example_project/notebook.py
"""

# %% A session on this machine. On a cluster, use the existing one.
from __future__ import annotations

import os
import tempfile

from pyspark_pgqueue.jobs.export import export
from pyspark_pgqueue.lake.reading import read as read_lake
from pyspark_pgqueue.session import local_session

URL = os.environ["PGQUEUE_URL"]
LAKE = os.environ.get("LAKE", tempfile.mkdtemp(prefix="lake-"))
spark = local_session("notebook")

# %% The archive, straight from PostgreSQL. Name the columns, or all of them are read.
archive = spark.read.format("pgqueue").option("url", URL)
outcomes = archive.option("columns", "queue,state,read_ct").load()
outcomes.groupBy("queue", "state").count().show()

# %% Bodies are JSON text. A schema turns them into columns; parse_json returns a VARIANT.
bodies = archive.option("columns", "id,body").option("subscribe", "github").load()
bodies.selectExpr("parse_json(body) AS body").selectExpr(
    "variant_get(body, '$.repository.full_name', 'string') AS repository"
).groupBy("repository").count().orderBy("count", ascending=False).show(5, truncate=False)

# %% The live messages now. Reading leaves them in the queue.
live = spark.read.format("pgqueue").option("url", URL).option("source", "live")
live.option("columns", "queue,state").load().groupBy("queue", "state").count().show()

# %% A lake. Exports are incremental: the second call changes nothing.
print(export(spark, URL, LAKE))
print(export(spark, URL, LAKE))
read_lake(spark, LAKE).groupBy("queue", "date").count().show()

# %% The lake and then the archive, as one stream. Run the cell again for newer messages.
stream = spark.readStream.format("pgqueue").option("url", URL).option("columns", "id,queue,state")
query = (
    stream.option("lake", LAKE)
    .load()
    .writeStream.format("console")
    .option("checkpointLocation", f"{LAKE}/_checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# %% Rows become messages, each exactly once. Writing a version again changes nothing.
messages = spark.range(3).selectExpr("to_json(struct(id)) AS body", "'github' AS queue")
if os.environ.get("SEND"):
    messages.write.format("pgqueue").mode("append").options(
        url=URL, txnAppId="notebook", txnVersion="1"
    ).save()
