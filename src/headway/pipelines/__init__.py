"""Pipelines on Spark that can be run as they are, or taken apart: their stages are functions of DataFrames."""
