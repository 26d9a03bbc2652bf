"""The parts of `approval`: conditions, rules and policies; questions to a person."""
