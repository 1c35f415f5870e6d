"""What kills a run's processes on purpose, and looks whether anything was lost; see `bench.recovery`."""
