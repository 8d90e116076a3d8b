"""The pipeline on clusters of four kinds, with an executor and the driver killed in the middle.

python -m tests.spark.clusters                 # prints the table of docs/spark.md
python -m tests.spark.clusters standalone      # one kind
pytest tests/spark/clusters --clusters=standalone
"""
