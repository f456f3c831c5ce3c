"""What backends may make stages of: one from arithmetic on single rows, and the name of the weights they hold."""
