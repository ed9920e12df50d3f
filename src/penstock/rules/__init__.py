"""What becomes of tables and rows on their way: which of them go on, and what is changed in them.

Names and images of the source go in, those of the target come out. Nothing here knows a source, a database or Spark.
"""
