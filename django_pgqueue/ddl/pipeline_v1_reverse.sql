DROP TABLE IF EXISTS pgqueue_staging, pgqueue_spark_txn, pgqueue_purge_mark;
