"""Runs queries in an engine: `engines.py duckdb|chdb|spark`, a list of queries as JSON on standard input; the rows of each, as
JSON, on standard output."""

import json
import sys


def duckdb(queries):
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for query in queries:
        yield connection.execute(query).fetchall()


def chdb(queries):
    import chdb

    for query in queries:
        text = str(chdb.query(query.rstrip().rstrip(";"), "JSONCompact"))
        yield json.loads(text)["data"]


def spark(queries):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("lj-trace")
    builder = builder.config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    for query in queries:
        yield [list(row) for row in session.sql(query.rstrip().rstrip(";")).collect()]


if __name__ == "__main__":
    engine = {"duckdb": duckdb, "chdb": chdb, "spark": spark}[sys.argv[1]]
    json.dump(list(engine(json.load(sys.stdin))), sys.stdout, default=str)
