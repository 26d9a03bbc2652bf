"""OmniMessage: a run as records, for stream, store and model alike.

`records` says what a record is and builds them, `codec` turns events into records and back, `aggregate` folds fragments
into complete records, `json` is the text of a record.
"""
