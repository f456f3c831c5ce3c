"""Further policies of batching, scheduling, preemption and routing."""
