"""Recorded traffic comes in as it was recorded, and what cannot be used is refused in one line that says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_traffic_scheduler.simulation import CallLength, TraceError, read_lengths, read_trace
from llm_traffic_scheduler.simulation.traces import check_fits

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
PLAIN = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


def test_timestamps_keep_their_tenths_of_a_microsecond(trace: Path) -> None:
    trace.write_text(AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:46.6805907,396,109\n")

    first, second = read_trace(trace)

    assert (first.arrival, first.length) == (0.0, CallLength(374, 44))
    assert second.arrival == pytest.approx(7e-7, abs=1e-12)


def test_timestamps_may_have_a_zone_or_no_fraction(trace: Path) -> None:
    trace.write_text(AZURE + "2024-05-10 00:00:59+00:00,1,1\n2024-05-10 00:01:00.5+00:00,1,1\n")

    assert [call.arrival for call in read_trace(trace)] == [0.0, 1.5]


def test_seconds_count_from_the_first_row_and_clients_are_kept(trace: Path) -> None:
    trace.write_text("arrival_s,client,prompt_tokens,output_tokens\n5.5,c0,13,199\n6,c1,36,137\n")

    calls = read_trace(trace)

    assert [(call.arrival, call.client) for call in calls] == [(0.0, "c0"), (0.5, "c1")]
    assert calls[1].length == CallLength(36, 137)


def test_a_spreadsheets_byte_order_mark_spaces_blank_lines_and_more_columns_do_no_harm(trace: Path) -> None:
    trace.write_bytes("\ufeffarrival_s, prompt_tokens ,output_tokens,note\r\n\r\n0, 1 ,2.0,x\r\n".encode())

    assert [call.length for call in read_trace(trace)] == [CallLength(1, 2)]


def test_two_calls_may_arrive_at_one_instant(trace: Path) -> None:
    trace.write_text(PLAIN + "0,1,1\n0,2,2\n")

    assert len(read_trace(trace)) == 2


@pytest.mark.parametrize(
    "content, row, fragment",
    [
        ("", 1, "empty file: expected a header with TIMESTAMP"),
        ("time,tokens\n1,2\n", 1, "unknown columns time, tokens: expected a header with TIMESTAMP"),
        (PLAIN, 1, "no calls below the header"),
        (PLAIN + "0,1,1\n1,-5,1\n", 3, "prompt_tokens must be a whole number from 0 to 999999999, got '-5'"),
        (PLAIN + "0,1,nan\n", 2, "output_tokens must be a whole number"),
        (PLAIN + "0,1,\n", 2, "output_tokens must be a whole number"),
        (PLAIN + "0,1.5,1\n", 2, "prompt_tokens must be a whole number"),
        (PLAIN + "0,\u0663,1\n", 2, "prompt_tokens must be a whole number"),
        (PLAIN + "0,1,1000000000\n", 2, "output_tokens must be a whole number"),
        (PLAIN + "nan,1,1\n", 2, "arrival_s must be a finite number of seconds, got 'nan'"),
        (PLAIN + "inf,1,1\n", 2, "arrival_s must be a finite number"),
        (PLAIN + "soon,1,1\n", 2, "arrival_s must be a finite number"),
        (PLAIN + "2,1,1\n1,1,1\n", 3, "arrivals must not go back in time: '1' is before the row above"),
        (PLAIN + "0,1\n", 2, "expected 3 values as in the header, got 2"),
        (PLAIN + '0,1,"1\n', 2, "not CSV"),
        (AZURE + "yesterday,1,1\n", 2, "TIMESTAMP must be a time such as"),
    ],
)
def test_a_bad_trace_is_refused_with_file_and_row(trace: Path, content: str, row: int, fragment: str) -> None:
    trace.write_text(content, encoding="utf-8")

    with pytest.raises(TraceError) as caught:
        read_trace(trace)

    assert str(caught.value).startswith(f"{trace}, row {row}: {fragment}")
    assert "\n" not in str(caught.value)


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "picture.png"
    binary.write_bytes(b"\x89PNG\xff\xfe")

    with pytest.raises(TraceError, match=r"missing\.csv: cannot be read: No such file or directory"):
        read_trace(tmp_path / "missing.csv")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="not a text file in UTF-8"):
        read_trace(binary)


@pytest.mark.parametrize(
    "header",
    [
        "num_prefill_tokens,num_decode_tokens,pd_ratio",
        "ContextTokens,GeneratedTokens,TIMESTAMP",
        "prompt_tokens,output_tokens,arrival_s",
    ],
)
def test_batch_lengths_come_from_three_layouts_and_arrivals_do_not_matter(trace: Path, header: str) -> None:
    trace.write_text(f"{header}\n3772,54,9\n2015,156,never\n")

    assert read_lengths(trace) == (CallLength(3772, 54), CallLength(2015, 156))


def test_bad_batch_lengths_are_refused_with_file_and_row(trace: Path) -> None:
    trace.write_text("num_prefill_tokens,num_decode_tokens\n")
    with pytest.raises(TraceError, match="row 1: no lengths below the header"):
        read_lengths(trace)

    trace.write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match="row 1: unknown columns a, b: expected a header with num_prefill_tokens"):
        read_lengths(trace)

    trace.write_text("num_prefill_tokens,num_decode_tokens\n1,2\n3,-4\n")
    with pytest.raises(TraceError, match="row 3: num_decode_tokens must be"):
        read_lengths(trace)


def test_the_first_call_that_never_fits_is_named_with_the_bound_to_the_last_digit() -> None:
    lengths = [CallLength(1_998_975, 1), CallLength(1_998_975, 2)]

    check_fits(lengths[:1], "traffic", 1_998_976)
    with pytest.raises(
        TraceError, match=r"^call 2 of the traffic: 1998977 tokens never fit .* \(at most 1998976 tokens\)$"
    ):
        check_fits(lengths, "traffic", 1_998_976)
