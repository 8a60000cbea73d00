from __future__ import annotations

from typing import Any

import pytest

from llm_traffic_scheduler import QueueFull, SchedulerMisuse
from llm_traffic_scheduler.adapters.http_library import library_of


@pytest.fixture(params=["httpx", "httpx2"])
def module(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param, reason=f"{request.param} is not installed")


def test_a_request_of_a_derived_class_has_the_answers_of_its_library(module: Any) -> None:
    class Signed(module.Request):  # type: ignore[misc]
        pass

    request = Signed("POST", "http://llm/")
    answer = library_of(request).refusal(request, QueueFull("full", kind="batch", queued=1, limit=1, retry_after=4))

    assert isinstance(answer, module.Response)
    assert answer.request is request
    assert answer.headers["retry-after"] == "4"
    assert library_of(request) is library_of(module.Request("GET", "http://llm/"))


def test_bodies_pass_for_the_librarys_own(module: Any) -> None:
    library = library_of(module.Request("POST", "http://llm/"))

    assert issubclass(library.body, module.AsyncByteStream)
    assert issubclass(library.sync_body, module.SyncByteStream)


def test_what_is_no_request_of_a_known_library_is_named() -> None:
    with pytest.raises(SchedulerMisuse, match=r"got builtins\.str"):
        library_of("POST")
