"""What arguments may look like: Python types and JSON Schemas as shapes, which describe, check and build values."""
