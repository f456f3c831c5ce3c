"""Forwards the connections of clients of machines that have joined to the API of the server."""
