"""The pipeline on four kinds of cluster; an executor and the driver are killed meanwhile.

python -m tests.spark.clusters                 # prints the table of docs/spark.md
python -m tests.spark.clusters standalone      # one kind
pytest tests/spark/clusters --clusters=standalone
"""
