"""Fuzzing of every parser: bytes of a stranger in, and nothing but the documented errors out."""
