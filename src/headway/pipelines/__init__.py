"""Pipelines on Spark to run as they are, or to take apart: their stages are functions of DataFrames."""
