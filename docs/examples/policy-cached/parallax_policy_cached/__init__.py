"""A scheduling policy that computes prompts first of which most is cached."""
