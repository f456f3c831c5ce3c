"""What a server shows of its cluster: ``/v1/cluster``, and the routes that drain replicas and move layers."""
