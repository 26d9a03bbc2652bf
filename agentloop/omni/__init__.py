"""OmniMessage: a run as records, one structure for stream, store and model.

`records` says what a record is and builds them, `jsonl` is the text of one, `codec` turns events into records and back,
`aggregate` folds fragments into complete records. `trace`, `reader`, `recorder`, `redact` and `resume` are records on disk,
`sse` and `channel` records over HTTP, `check` the protocol's rules over many records.
"""
