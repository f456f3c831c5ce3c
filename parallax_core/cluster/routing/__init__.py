"""What a router knows of the load and the speed of each replica, and the policy that chooses by expected finish."""
