"""The parts of `grammar`: its tables, what tables cannot say, derived values, the picture."""
