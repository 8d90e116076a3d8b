"""A notebook for a data engineer to copy from: each ``# %%`` is a cell.

Editors (VS Code, PyCharm, Jupyter with jupytext) show it as a notebook; it also runs as a script:

    PGQUEUE_URL=postgresql://user@host/inbox python example_project/notebook.py
"""

# %% A session on this machine. On a cluster, take the one that is there.
from __future__ import annotations

import os
import tempfile

from pyspark_pgqueue.export import export
from pyspark_pgqueue.lake_source import read as read_lake
from pyspark_pgqueue.session import local_session

URL = os.environ["PGQUEUE_URL"]
LAKE = os.environ.get("LAKE", tempfile.mkdtemp(prefix="lake-"))
spark = local_session("notebook")

# %% The archive, straight from PostgreSQL: name the columns, since all of them would be read.
archive = spark.read.format("pgqueue").option("url", URL)
outcomes = archive.option("columns", "queue,state,read_ct").load()
outcomes.groupBy("queue", "state").count().show()

# %% Bodies are JSON text. With a schema they come as columns; parse_json gives VARIANT.
bodies = archive.option("columns", "id,body").option("subscribe", "github").load()
bodies.selectExpr("parse_json(body) AS body").selectExpr(
    "variant_get(body, '$.repository.full_name', 'string') AS repository"
).groupBy("repository").count().orderBy("count", ascending=False).show(5, truncate=False)

# %% What is in the queue now; nothing is taken out.
live = spark.read.format("pgqueue").option("url", URL).option("source", "live")
live.option("columns", "queue,state").load().groupBy("queue", "state").count().show()

# %% A lake: incremental, and a second call changes nothing.
print(export(spark, URL, LAKE))
print(export(spark, URL, LAKE))
read_lake(spark, LAKE).groupBy("queue", "date").count().show()

# %% The archive as a stream, from a checkpoint on: run the cell again for what is new.
stream = spark.readStream.format("pgqueue").option("url", URL).option("columns", "id,queue,state")
query = (
    stream.load()
    .writeStream.format("console")
    .option("checkpointLocation", f"{LAKE}/_checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# %% Rows become messages, each once. A version that was written before changes nothing.
messages = spark.range(3).selectExpr("to_json(struct(id)) AS body", "'github' AS queue")
if os.environ.get("SEND"):
    messages.write.format("pgqueue").mode("append").options(
        url=URL, txnAppId="notebook", txnVersion="1"
    ).save()
