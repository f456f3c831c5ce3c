"""One runner for what may happen to servers, workers, machines and networks: ``python -m benchmarks.faults``."""
