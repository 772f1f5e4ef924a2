"""The eve dialect: records of NDJSON, addressed by their count."""
