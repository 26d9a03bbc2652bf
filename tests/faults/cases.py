"""Where each reported fault is tested, by its number; a test holds the names against what there is."""

from __future__ import annotations

CASES: dict[str, tuple[str, ...]] = {
    "C001": ("faults/test_cases.py::test_c001_a_refused_call_does_not_overtake_an_earlier_one",),
    "C003": (
        "test_grammar.py::test_a_text_block_closes_before_a_tool_starts",
        "test_grammar.py::test_no_start_or_end_can_be_left_out",
    ),
    "C015": ("faults/test_cases.py::test_c015_arguments_before_the_name",),
    "C020": (
        "property/test_order.py::test_g05_the_snapshot_is_the_message_rebuilt_from_the_deltas",
        "test_context.py::test_messages_cannot_be_changed_by_a_transform",
    ),
    "C022": ("faults/test_cases.py::test_c022_a_reply_cut_by_length_runs_no_tool",),
    "C031": (
        "property/test_failure.py::test_g19_a_foreign_cancellation_is_the_tools_own_error",
        "faults/test_cases.py::test_c031_a_real_cancellation_is_no_failure_of_a_tool",
    ),
    "C036": ("faults/test_cases.py::test_c036_no_update_after_the_end_of_a_call",),
    "C041": ("faults/test_cases.py::test_c041_one_failing_sibling_leaves_the_others_alone",),
    "C045": ("faults/test_cases.py::test_c045_an_exclusive_tool_is_not_run_beside_others",),
    "C049": ("faults/test_cases.py::test_c049_an_abort_during_a_tool_leaves_the_queue",),
    "C059": ("faults/test_cases.py::test_c059_an_abort_before_any_content_leaves_no_empty_message",),
    "C064": (
        "property/test_lifetime.py::test_g24_a_plain_break_starts_the_clean_up_at_once",
        "property/test_lifetime.py::test_g24_an_exception_in_the_consumer",
        "faults/test_matrix.py::test_every_fault_at_every_point",
    ),
    "C066": ("property/test_lifetime.py::test_g25_a_model_that_holds_a_scope_across_its_yields",),
    "C071": ("property/test_lifetime.py::test_g27_nothing_happens_before_the_first_step",),
    "C076": ("property/test_lifetime.py::test_g27_context_variables_are_those_of_the_first_step",),
    "C082": ("faults/test_cases.py::test_c082_the_cost_of_many_tiny_fragments_is_linear",),
    "C088": ("faults/test_cases.py::test_c088_a_failure_after_visible_output_is_not_doubled",),
    "C095": ("faults/test_cases.py::test_c095_the_end_of_a_stream_without_a_stop_is_an_error",),
    "C101": (
        "faults/test_cases.py::test_c101_one_id_for_every_call_of_a_conversation",
        "omni/test_recorder.py::test_one_id_for_every_call",
        "omni/test_resume.py::test_an_id_that_returns",
    ),
    "C109": (
        "test_context.py::test_a_transform_changes_the_request_and_nothing_else",
        "property/test_boundary.py::test_g14_transforms_work_on_copies",
    ),
    "C113": ("test_context.py::test_one_context_and_config_serve_many_runs",),
    "C122": ("property/test_queues.py::test_g29_the_first_poll_comes_after_the_prompts_and_joins_their_turn",),
    "C127": (
        "omni/test_reader.py::test_torn_last_line_at_every_byte",
        "omni/test_trace.py::test_torn_tails_are_healed_once",
        "omni/test_trace.py::test_crash_and_go_on_three_times",
        "omni/test_resume.py::test_cut_at_every_byte",
    ),
    "C140": ("omni/test_recorder.py::test_a_full_disk", "omni/test_recorder.py::test_a_sink_that_fails"),
    "C145": (
        "omni/test_sse.py::test_every_text_survives_every_split",
        "omni/test_sse.py::test_nothing_else_ends_a_line",
        "omni/test_sse.py::test_byte_order_mark",
        "omni/test_sse.py::test_comments_and_unknown_fields",
        "omni/test_sse.py::test_injection_is_refused",
    ),
    "C155": (
        "faults/test_cases.py::test_c155_half_a_surrogate_pair",
        "omni/test_jsonl.py::test_lone_surrogates_survive",
        "omni/test_sse.py::test_half_surrogates",
    ),
    "C162": ("faults/test_cases.py::test_c162_empty_blank_null_and_other_arguments",),
    "C167": (
        "test_approval_questions.py::test_approval_of_one_is_not_approval_of_all",
        "test_approval_questions.py::test_all_are_visible_and_answered_in_any_order",
        "test_approval_questions.py::test_an_answer_that_does_not_fit_changes_nothing",
    ),
    "C181": ("test_subagent.py::test_c181_abort_reaches_the_grandchild_first",),
    "C195": ("faults/test_cases.py::test_c195_errors_leave_bare",),
}
"""Number to tests (file and function)."""
