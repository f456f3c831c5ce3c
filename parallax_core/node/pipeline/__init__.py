"""One replica made of stages: engine, driver and recovery. `executor` opens the stages."""
