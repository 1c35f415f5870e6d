"""What a user deploys, triggers and schedules: one Prefect flow a file."""
