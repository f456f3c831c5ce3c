"""Describes the API of a server as an OpenAPI document."""
