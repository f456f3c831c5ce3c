"""Links between nodes that cannot reach each other, over a third one."""
