"""OmniMessage records: plain dicts, built by one function a kind, told apart by guards."""

from agentloop.omni.records import (
    check_record,
    event_kind,
    is_complete_model_message,
    is_event,
    is_partial,
    origin_of,
    partial_text,
    request_begin,
    user_text,
    with_origin,
)

question = user_text("What is 2 + 3?")
piece = partial_text("delta", "The sum")
begin = request_begin()

for record in (question, piece, begin):
    assert not check_record(record), check_record(record)
    print(record["payload"]["type"], is_complete_model_message(record), is_partial(record), is_event(record))

print("kind:", event_kind(begin))
print("came through:", origin_of(with_origin(with_origin(begin, "child"), "parent")))
print("problems of a damaged one:", len(check_record({**question, "payload": {"type": "text"}})) > 0)
