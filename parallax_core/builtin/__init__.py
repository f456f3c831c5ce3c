"""What core itself offers, through the same door as everybody else."""
