"""One replica made of stages: the engine, its driver and its recovery. How stages are opened is in `executor`."""
