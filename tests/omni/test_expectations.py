"""The expectations that the protocol's page lists by number: for each the tests that hold it, or why there is none.

"ours" says where we do better than, or differently from, what the list says, as the page on records allows.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

HELD: dict[int, str] = {
    1: "omni/test_records::test_timestamps omni/test_records::test_builders_write_envelope_and_keys_in_their_order",
    2: "omni/test_records::test_complete_messages_always_say_their_stop_reason",
    3: "omni/test_records::test_what_is_absent_is_not_written",
    4: "omni/test_records::test_an_output_with_images_survives_json",
    5: "omni/test_records::test_guards_tell_the_four_apart",
    6: "omni/test_records::test_token_counts_add_up",
    7: "omni/test_records::test_each_hop_goes_to_the_front",
    8: "omni/test_jsonl::test_every_line_of_the_sample_traces_comes_back_the_same",
    9: "omni/test_reader::test_unknown_kinds_are_kept omni/test_codec::test_unknown_roles_and_kinds_survive",
    10: "omni/test_aggregator::test_a_text_is_its_pieces omni/test_aggregator::test_a_call_keeps_id_and_name_of_its_start",
    11: "omni/test_aggregator::test_images_fold_in_and_the_later_set_wins",
    12: "omni/test_aggregator::test_of_our_streams_just_the_complete_records_stay"
    " omni/test_aggregator::test_two_tools_fold_apart",
    13: "omni/test_aggregator::test_what_was_never_stopped_is_flushed_cut"
    " omni/test_aggregator::test_a_second_start_ends_the_first_segment"
    " omni/test_aggregator::test_a_piece_without_a_start_opens_a_segment",
    14: "omni/test_aggregator::test_two_sessions_fold_apart omni/test_channel::test_fragments_of_two_origins_do_not_mix",
    15: "omni/test_codec::test_segments_keep_their_discipline",
    16: "test_session_stream::test_interrupted_segments_are_closed_with_the_reason"
    " test_session_stream::test_half_a_call_is_asked_about_by_nobody",
    17: "property/test_order::test_g03_blocks_do_not_overlap_and_count_from_zero"
    " property/test_order::test_g04_deltas_reassemble_exactly"
    " omni/test_codec::test_blocks_keep_order_fidelity_and_gaps",
    18: "test_convert::test_a_block_with_fidelity_is_not_empty"
    " models/test_anthropic::test_text_and_thinking_come_piece_by_piece_and_their_fidelity_at_the_end",
    19: "property/test_boundary::test_g17_fidelity_comes_back_deep_equal"
    " test_session_stream::test_fidelity_goes_back_as_it_came_after_a_resume",
    20: "test_session_stream::test_the_last_report_of_a_request_counts",
    21: "omni/test_trace::test_what_is_recorded omni/test_recorder::test_children_are_pointers",
    22: "omni/test_trace::test_place_and_content omni/test_trace::test_rotation_waits_for_content",
    23: "omni/test_trace::test_one_write_a_record omni/test_trace::test_threads_share_a_writer",
    24: "omni/test_trace::test_rotation_waits_for_content omni/test_trace::test_threads_share_a_writer",
    25: "omni/test_trace::test_a_partly_written_record omni/test_recorder::test_space_comes_back",
    26: "omni/test_trace::test_a_partly_written_record omni/test_trace::test_a_write_without_progress",
    27: "omni/test_trace::test_torn_tails_are_healed_once omni/test_trace::test_an_empty_file_gets_no_newline",
    28: "omni/test_reader::test_torn_last_line_at_every_byte",
    29: "omni/test_reader::test_damaged_middle_lines omni/test_reader::test_strict_bears_a_torn_tail",
    30: "omni/test_reader::test_a_report_names_twenty",
    31: "omni/test_reader::test_json_that_is_no_record_is_damage omni/test_resume::test_hostile_fields",
    32: "omni/test_reader::test_latest_file omni/test_reader::test_latest_session",
    33: "omni/test_resume::test_committed_turns_and_trailing_input",
    34: "omni/test_resume::test_a_failed_turn_leaves_no_trace",
    35: "omni/test_resume::test_a_request_without_an_end",
    36: "omni/test_resume::test_outputs_survive_a_later_failed_turn",
    37: "omni/test_resume::test_outputs_of_a_dropped_turn_never_come_back",
    38: "omni/test_resume::test_missing_outputs_get_placeholders",
    39: "omni/test_resume::test_input_between_begin_and_end_belongs_to_the_next_request",
    40: "omni/test_resume::test_any_line_may_be_missing omni/test_resume::test_any_line_of_ours_may_be_missing",
    41: "omni/test_resume::test_outputs_come_in_call_order_before_inputs",
    42: "omni/test_resume::test_a_file_that_ends_with_a_summary",
    43: "omni/test_resume::test_what_may_stand_behind_a_closure",
    44: "omni/test_resume::test_an_empty_summary_is_no_closure",
    45: "omni/test_resume::test_an_abandoned_compaction",
    46: "omni/test_resume::test_an_open_compaction_is_closed_once test_session::test_the_draft_of_a_summary_is_dropped",
    47: "omni/test_resume::test_steering_replays_as_input",
    48: "omni/test_resume::test_counters test_session::test_counters_go_on",
    49: "omni/test_resume::test_resuming_twice_gives_the_same",
    50: "omni/test_recorder::test_replayed_equals_sent_and_received",
    51: "omni/test_resume::test_refusals test_session::test_sessions_that_are_there_and_that_are_not",
    52: "omni/test_resume::test_legacy_spelling omni/test_records::test_old_stop_reasons_of_messages",
    53: "test_session_stream::test_trace_order_is_stream_order test_session::test_records_are_the_run_as_streamed",
    54: "test_session_stream::test_the_prompt_comes_first_then_the_servers_then_the_tools",
    55: "test_session_stream::test_two_calls property/test_order::test_g08_ends_by_completion_results_in_call_order",
    56: "test_session_stream::test_two_calls property/test_order::test_g06_a_tool_runs_only_after_its_reply_is_committed",
    57: "test_session::test_without_an_approve_callback_every_call_is_denied"
    " test_hooks::test_the_first_decision_wins_and_each_answer_is_told"
    " test_hooks::test_forbidden_outranks_a_hook_and_is_not_asked",
    58: "test_session::test_without_an_approve_callback_every_call_is_denied"
    " test_session_stream::test_whoever_fails_to_decide_denies",
    59: "property/test_failure::test_g19_every_temper_of_a_tool_gives_its_result_and_the_next_turn_follows"
    " property/test_failure::test_g19_a_result_is_never_empty",
    60: "test_batches::test_streamed_output_is_the_results_text omni/test_codec::test_outputs_say_what_the_protocol_can_say",
    61: "test_session_stream::test_half_a_call_is_asked_about_by_nobody test_session::test_half_a_call_is_not_told",
    62: "test_session_stream::test_a_slow_tool_costs_its_own_time",
    63: "test_session_stream::test_the_limit_of_turns_is_said_by_the_end",
    64: "property/test_failure::test_g20_the_ladder_is_announced_and_waited",
    65: "test_session_stream::test_a_failed_request_ends_the_run_without_an_abort"
    " test_session::test_a_failure_is_carried_over",
    66: "property/test_failure::test_g20_a_retry_adds_nothing_and_runs_no_tool_twice",
    67: "property/test_failure::test_g20_a_wait_can_be_skipped"
    " property/test_failure::test_g21_an_abort_during_the_wait_and_the_question"
    " test_session::test_a_run_is_like_the_kernels",
    68: "models/test_errors::test_status_decides_where_the_body_says_nothing"
    " models/test_errors::test_body_is_read_before_the_status",
    69: "property/test_failure::test_g21_the_deaf_are_given_up_within_the_bound"
    " property/test_failure::test_g21_a_reply_whose_finish_was_read_before_the_abort_is_complete",
    70: "omni/test_carry::test_case_a omni/test_carry::test_case_b_as_in_the_sample"
    " test_session::test_a_reply_that_broke_off_is_told_as_text test_session_leaving::test_left_at_every_event",
    71: "test_compaction_in_the_loop::test_after_the_last_turn_the_summary_is_pending"
    " test_compaction::test_one_context_one_file",
    72: "test_compaction_in_the_loop::test_before_a_turn_the_summary_alone_starts_the_new_context",
    73: "test_compaction::test_thresholds_fire_at_equality"
    " test_compaction_in_the_loop::test_discard_waits_for_the_end_and_asks_nobody test_compaction::test_by_hand",
    74: "test_compaction_in_the_loop::test_an_unusable_reply_is_asked_again_and_its_calls_are_answered"
    " test_compaction_in_the_loop::test_given_up",
    75: "test_session_stream::test_a_summary_streams_once_between_the_pair",
    76: "test_session_stream::test_steering_is_recorded_and_kept test_agent_queues::test_take_back_and_clear"
    " test_compaction::test_steering_waits_behind_the_summary",
    77: "omni/test_recorder::test_children_are_pointers omni/test_codec::test_children_of_children"
    " test_approval_questions::test_questions_of_nested_runs_say_where_they_come_from",
    78: "test_hooks::test_the_first_decision_wins_and_each_answer_is_told"
    " test_hooks::test_a_hook_that_fails_decides_nothing test_hooks::test_a_stop_hook_drives_another_task"
    " test_hooks::test_no_stop_hook_after_an_interruption",
    79: "test_session_stream::test_a_model_switch omni/test_trace::test_a_model_switch_opens_the_next_file",
    80: "omni/test_channel::test_ids_grow omni/test_channel::test_replay_is_exact omni/test_channel::test_misses",
    81: "omni/test_channel::test_fresh_connection omni/test_channel::test_reconnection",
    82: "omni/test_channel::test_a_late_joiner_sees_every_character_once",
    83: "test_session_stream::test_an_abort_while_a_question_is_open test_session::test_a_second_run_is_a_clear_error",
    84: "omni/test_expand::test_pointers_are_expanded_at_their_place omni/test_expand::test_a_child_is_shown_once",
}

OURS: dict[int, str] = {
    16: "a half call is closed and is no part of the message",
    18: "a block is what the provider calls one: where text and thinking part is for its adapter to say, which closes them",
    53: "the prompt is in the stream too: it is part of the run",
    55: "calls are decided on and run after `request_end`, so that no call of a reply runs that was not committed",
    60: "the loop cuts no output: how long one may be is for its tool; what streams is what is complete, notes too",
    63: "no notice among the messages: `agent_end` says it",
    66: "a retry is prepared anew from the same history, without a text about the attempt before",
    76: "what was queued and not delivered is kept for the next run",
    79: "the new file opens with the next record and not at once: its head alone would be a context of nothing",
    83: "an open question gets no decision: its call ends `aborted`",
}


@cache
def functions_in(name: str) -> frozenset[str]:
    tree = ast.parse((TESTS / f"{name}.py").read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(node.name for node in functions)


@pytest.mark.parametrize("number", sorted(HELD))
def test_an_expectation_has_its_tests(number: int) -> None:
    """The tests that are named are there."""
    named = [test.split("::") for test in HELD[number].split()]
    assert named and [name for file, name in named if name not in functions_in(file)] == []


def test_no_expectation_is_left_out(shared: Path) -> None:
    """Each number of the list is in the table, and nothing else; so is each that we hold in a way of our own."""
    listed = (shared / "design" / "omnimessage-checklist.md").read_text("utf-8")
    numbers = {int(match[1]) for match in re.finditer(r"^(\d+)\. \[", listed, re.MULTILINE)}
    assert set(HELD) == numbers == set(range(1, 85))
    assert set(OURS) <= numbers
