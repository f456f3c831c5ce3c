"""Has the nodes that have joined form the pipelines that a plan says, and plans anew when they change."""
