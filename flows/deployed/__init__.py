"""Flows as prefect.yaml deploys them: their parameters are the forms of the Prefect UI."""
