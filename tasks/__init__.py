"""What a flow calls: one Prefect task a file. Only policy lives here: retry, timeout, caching, journal."""
