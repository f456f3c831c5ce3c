"""Stages that are made of less than a whole one."""
