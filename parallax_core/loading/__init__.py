"""What every backend does before its first tensor: what a plan asks for, and a checkpoint read without a framework."""
