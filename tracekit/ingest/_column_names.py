"""The words that other people's logs use for the columns of the request record.

Data and one function: a header's key and the unit written in it. English and Korean; best
first, since the first of several that a file has wins. A name that means different things in
different tools (``time``, ``metrics.time_to_first_token_ms``, ``response_time`` of a gateway)
is left out or marked: a wrong column is worse than an unmapped one.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from tracekit.ingest import _cells

#: Our column -> their keys (see `key_of`), best first.
ALIASES: Final[dict[str, tuple[str, ...]]] = {
    column: tuple(words.split())
    for column, words in {
        "request_id": "request_id x_request_id requestid req_id id call_id request_name "
        "request name uuid 요청id 요청 요청명 요청이름",
        "response_id": "response_id completion_id chat_completion_id",
        "trace_id": "trace_id traceid otel_trace_id traceparent",
        "attempt": "attempt try attempt_number",
        "start_unix_ns": "start_unix send_unix sent_unix start_time start start_timestamp "
        "started_at start_at request_start request_start_time request_time "
        "sent_at send_time timestamp ts event_time created_at created datetime date_time time "
        "시작 시작시각 시작시간 요청시각 요청시간 시각 일시",
        "intended_start_unix_ns": "intended_start intended_start_unix scheduled_start "
        "planned_start",
        "end_unix_ns": "end_unix end_time end end_timestamp ended_at finished_at completed_at "
        "request_end request_end_time finish_time 종료 종료시각 종료시간 완료시각",
        "model": "model model_name model_id request_model response_model gen_ai_request_model "
        "모델 모델명",
        "provider": "provider vendor llm_provider 제공자",
        "engine": "engine serving_engine backend_engine 엔진",
        "route": "route endpoint api_route request_type task use_case scenario workload kind "
        "유형 종류 용도",
        "tenant": "tenant customer tenant_id customer_id team 고객 팀",
        "worker": "worker worker_id instance replica pod backend 워커",
        "prefill_worker": "prefill_worker prefill_worker_id prefill_instance prefill_pod",
        "decode_worker": "decode_worker decode_worker_id decode_instance decode_pod",
        "input_tokens": "input_tokens prompt_tokens input_token_count prompt_token_count "
        "num_input_tokens num_prompt_tokens n_input_tokens n_prompt_tokens input_token "
        "prompt_token tokens_in in_tokens input_len input_length prompt_len prompt_length "
        "input_sequence_length context_tokens request_tokens usage_prompt_tokens "
        "usage_input_tokens 입력토큰 입력토큰수 프롬프트토큰 프롬프트토큰수 인풋토큰",
        "cached_tokens": "cached_tokens cached_input_tokens cached_prompt_tokens "
        "prompt_cached_tokens cache_read_tokens cache_read_input_tokens cache_hit_tokens "
        "prompt_cache_hit_tokens num_cached_tokens usage_prompt_tokens_details_cached_tokens "
        "usage_input_tokens_details_cached_tokens usage_cache_read_input_tokens "
        "usage_prompt_cache_hit_tokens usage_prompt_cache_read_tokens usage_cached_tokens "
        "input_cached_tokens usage_input_cached_tokens input_cache_read usage_input_cache_read "
        "캐시토큰 캐시토큰수 캐시된토큰",
        "cache_write_tokens": "cache_write_tokens cache_creation_tokens "
        "cache_creation_input_tokens cache_write_input_tokens created_cache_tokens "
        "cache_created_tokens cache_tokens_created cache_written_tokens written_cache_tokens "
        "cache_tokens_written cached_write_tokens num_cache_write_tokens "
        "num_cache_creation_tokens prompt_cache_write_tokens prompt_cache_creation_tokens "
        "usage_cache_creation_input_tokens usage_cache_write_input_tokens "
        "usage_cache_creation_tokens usage_cache_write_tokens "
        "usage_prompt_tokens_details_created_cache_tokens "
        "usage_prompt_tokens_details_cache_creation_tokens "
        "usage_prompt_tokens_details_cache_write_tokens "
        "usage_input_tokens_details_cache_creation_tokens "
        "usage_input_tokens_details_cache_write_tokens "
        "input_cache_creation usage_input_cache_creation 캐시쓰기토큰 캐시생성토큰",
        "output_tokens": "output_tokens completion_tokens output_token_count "
        "completion_token_count num_output_tokens num_completion_tokens n_output_tokens "
        "generated_tokens num_generated_tokens output_token completion_token tokens_out "
        "out_tokens output_len output_length output_sequence_length response_tokens "
        "usage_completion_tokens usage_output_tokens 출력토큰 출력토큰수 생성토큰 생성토큰수 "
        "답변토큰 응답토큰 아웃풋토큰",
        "reasoning_tokens": "reasoning_tokens thinking_tokens reasoning_output_tokens "
        "usage_completion_tokens_details_reasoning_tokens "
        "usage_output_tokens_details_reasoning_tokens 추론토큰",
        "streaming": "streaming stream is_streaming is_stream 스트리밍",
        "status": "status outcome state success is_success succeeded http_status "
        "http_status_code status_code 상태",
        "cancelled": "cancelled canceled aborted is_cancelled is_canceled is_aborted was_cancelled "
        "was_canceled was_aborted cancelled_by_client canceled_by_client aborted_by_client "
        "client_cancelled client_canceled client_aborted client_disconnected disconnected 취소 "
        "취소됨 중단",
        "finish_reason": "finish_reason stop_reason finish_reasons 종료사유",
        "error": "error error_type error_message error_msg error_class error_code exception "
        "오류 에러",
        "ttft_ms": "ttft time_to_first_token first_token_latency first_token_delay "
        "time_first_token time_to_first_chunk first_chunk_latency 첫토큰 첫토큰시간 첫토큰지연 "
        "첫토큰지연시간 첫토큰까지시간 첫응답시간",
        "ttft_kind": "ttft_kind",
        "ttfa_ms": "ttfa time_to_first_answer time_to_first_answer_token",
        "tpot_ms": "tpot time_per_output_token itl mean_itl avg_itl inter_token_latency "
        "mean_inter_token_latency avg_inter_token_latency 토큰당시간 토큰간지연",
        "e2e_ms": "e2e total_latency e2e_latency end_to_end_latency request_latency latency "
        "total_time total_duration duration e2e_time elapsed elapsed_time request_duration "
        "전체시간 전체지연 전체지연시간 총시간 총지연 총지연시간 총소요시간 소요시간 "
        "지연시간 지연 전체응답시간",
        "tokens_per_s": "tokens_per_s tokens_per_sec tokens_per_second tokens_sec tokens_s "
        "tok_s tok_per_s tok_sec output_tokens_per_second output_tokens_per_sec "
        "output_token_throughput token_throughput tps 초당토큰 초당토큰수 토큰초 토큰속도",
        "client_wait_ms": "client_wait client_wait_time client_queue client_queue_time",
        "network_ms": "network network_time network_latency",
        "frontend_ms": "frontend frontend_time tokenize_time tokenization_time",
        "route_ms": "routing_time router_time router_latency gateway_overhead",
        "queue_ms": "queue queue_time queue_wait queue_wait_time queue_latency queue_duration "
        "time_in_queue queueing_time queued_time 큐대기 큐대기시간 대기시간 큐시간",
        "prefill_ms": "prefill prefill_time prefill_latency prefill_duration 프리필 프리필시간",
        "kv_transfer_ms": "kv_transfer kv_transfer_time kv_transfer_latency kv_transfer_duration",
        "decode_ms": "decode decode_time decode_latency decode_duration 디코드 디코드시간",
        "kv_bytes": "kv_bytes kv_transfer_bytes kv_cache_bytes",
        "preemptions": "preemptions num_preemptions preemption_count",
        "chunk_offsets_ms": "chunk_unix chunk_offsets",
        "note": "note notes remark remarks comment comments memo 비고 메모 참고 설명",
    }.items()
}

#: Keys that only mean this if their cells look like it (points in time, here).
NEEDS_TIMES: Final = frozenset(
    ("time", "start", "end", "request_time", "시각", "시작", "종료", "요청시간")
)

#: Keys that are token counts if their cells are numbers, and text (never stored) if not.
NEEDS_NUMBERS: Final[dict[str, str]] = {
    "input": "input_tokens",
    "prompt": "input_tokens",
    "입력": "input_tokens",
    "output": "output_tokens",
    "completion": "output_tokens",
    "출력": "output_tokens",
    "choices": "choices",  # an answer of an API has its texts under this name
}

#: Keys whose cells are yes or no rather than words.
SUCCESS_FLAGS: Final = frozenset(("success", "is_success", "succeeded"))

#: Keys of `request_id` that hold a name that rows may share: no identity.
NAMES_NOT_IDS: Final = frozenset(("request", "request_name", "name", "요청", "요청명", "요청이름"))

#: A name with any of these words holds what people wrote or models answered: never stored,
TEXT_WORDS: Final = frozenset(
    "prompt prompts message messages content contents text texts completion completions response "
    "responses answer answers question questions query input inputs output outputs instruction "
    "instructions system history conversation transcript dialog dialogue body choices delta "
    "document documents context contexts passage passages retrieved arguments tool_calls "
    "프롬프트 질문 답변 응답 내용 본문 대화 입력 출력".split()
)
#: unless it ends in one of these.
SAFE_ENDINGS: Final = frozenset(
    "id ids token tokens count len length size hash type kind code name ms us ns s sec secs "
    "second seconds time times timestamp ts at date latency delay duration wait elapsed rate rps "
    "tps throughput speed ratio score bytes chars characters number num index version cost price "
    "usd format role status".split()
)
#: Endings that say nothing: ``prompt_tokens_details`` holds counts.
_EMPTY_ENDINGS: Final = ("details", "detail", "info", "stats", "usage", "avg", "mean", "total")

_BRACKETED: Final = re.compile(r"(.*?)[\s_]*[(\[{<]([^()\[\]{}<>]*)[)\]}>]\s*", re.DOTALL)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_WORD: Final = re.compile(r"[^0-9a-zµμ\uac00-\ud7a3]+")
_HANGUL: Final = re.compile(r"[\uac00-\ud7a3]")
#: Longest header that is looked at; the rest cannot be a name.
_MAX_NAME: Final = 200


def words_of(name: str) -> str:
    """A header in lower-case words joined by ``_``; Korean words are joined without it."""
    text = unicodedata.normalize("NFKC", name[:_MAX_NAME]).strip().strip("\ufeff\"'")
    words = _NOT_WORD.sub("_", _CAMEL.sub("_", text).lower()).strip("_")
    return words.replace("_", "") if _HANGUL.search(words) else words


def keys_of(name: str) -> list[tuple[str, str | None]]:
    """The readings of a header as (key, unit), likeliest first.

    ``ttft_ms`` -> ('ttft_ms', None), ('ttft', 'ms'); ``TTFT (s)`` -> ('ttft', 's'), ...
    """
    name = name[:_MAX_NAME]
    readings: list[tuple[str, str | None]] = []
    bracketed = _BRACKETED.fullmatch(name)
    if bracketed is not None and bracketed[1].strip():
        readings.append((words_of(bracketed[1]), _cells.unit_of(bracketed[2])))
    words = words_of(name)
    readings.append((words, None))
    base, _, last = words.rpartition("_")
    if base and last and (unit := _cells.unit_of(last)):
        readings.append((base, unit))
        if base.endswith("_unix"):  # send_time_unix_ns
            readings.append((base.removesuffix("_unix"), unit))
    for suffix in ("ms", "us", "ns", "sec", "seconds", "초", "밀리초"):  # ttftms, 첫토큰초
        if words.endswith(suffix) and len(words) > len(suffix):
            readings.append((words[: -len(suffix)].rstrip("_"), _cells.unit_of(suffix)))
    return readings


def holds_text(name: str) -> bool:
    """Whether a column's name says that it holds prompts or answers (any part of a path)."""
    for part in name.split("."):
        words = words_of(part).split("_")
        while len(words) > 1 and words[-1] in _EMPTY_ENDINGS:
            words.pop()
        if words[-1] not in SAFE_ENDINGS and not TEXT_WORDS.isdisjoint(words):
            return True
    return False
