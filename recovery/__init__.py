"""Bringing data back: the plan of a recovery, the merge of summaries (native and Spark)."""
