"""Links between machines over a peer-to-peer network."""
