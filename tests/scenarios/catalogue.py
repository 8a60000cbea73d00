"""The catalogue of known failures of such schedulers, one line per case: tested here, or what it waits for.

The ids are those of the catalogue; `test_b01_...` in this folder is the test of B01. One file per section of it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["CATALOGUE", "Case"]


class Case(NamedTuple):
    """One case.

    Attributes:
        here: it has a test in this folder.
        waits: the part of the project that the case, or the rest of it, waits for; or why it never gets a test.
    """

    id: str
    here: bool = False
    waits: str = ""


CATALOGUE: Final = (
    # A
    Case("B01", here=True),
    Case("B02", here=True),
    Case("B04", here=True),
    Case("B05", here=True),
    Case("B06", here=True),
    Case("B07", here=True),
    Case("B08", here=True),
    Case("B09", here=True),
    Case("B10", here=True),
    Case("B11", here=True),
    Case("B14", here=True),
    Case("B15", here=True),
    Case("B16", here=True),
    Case("B18", here=True),
    Case("B19", here=True),
    # B
    Case("B21", here=True),
    Case("B22", here=True),
    Case("B23", here=True),
    Case("B24", here=True),
    Case("B25", here=True),
    Case("B27", here=True, waits="redis: a lease that never comes"),
    Case("B28", here=True),
    Case("B29", waits="never: one call is one slot, the name `weight` is reserved"),
    Case("B30", here=True),
    Case("B32", here=True, waits="redis: a lease that is refused"),
    Case("B34", here=True),
    Case("B35", here=True),
    # C
    Case("B37", here=True),
    Case("B38", here=True),
    Case("B39", here=True),
    Case("B41", here=True),
    Case("B42", here=True),
    Case("B43", here=True),
    Case("B45", here=True),
    Case("B46", here=True),
    Case("B48", here=True),
    Case("B49", here=True),
    Case("B50", here=True, waits="never the jitter: there is no clocked tick"),
    Case("B51", here=True),
    Case("B53", here=True),
    Case("B54", here=True),
    Case("B56", here=True),
    Case("B57", waits="rate limits"),
    # D
    Case("B58", here=True),
    Case("B60", here=True),
    Case("B61", here=True),
    Case("B62", waits="redis"),
    Case("B64", here=True),
    Case("B65", here=True),
    # E
    Case("B66", here=True),
    Case("B67", here=True),
    Case("B70", here=True),
    Case("B71", here=True),
    Case("B72", here=True),
    Case("B73", here=True),
    # F
    Case("B75", here=True),
    Case("B76", here=True),
    Case("B77", here=True),
    Case("B78", here=True),
    Case("B80", waits="redis"),
    Case("B81", here=True),
    Case("B82", here=True),
    # G
    Case("B84", here=True),
    Case("B85", here=True),
    Case("B87", here=True),
    Case("B88", here=True),
    Case("B89", here=True),
    Case("B90", here=True),
    # H
    Case("B92", here=True),
    Case("B93", here=True),
    Case("B94", here=True),
    Case("B96", here=True),
    Case("B97", here=True),
    Case("B98", here=True),
    Case("B99", here=True, waits="redis"),
    # I
    Case("B101", waits="redis"),
    Case("B102", waits="redis"),
    Case("B103", waits="redis"),
    Case("B104", waits="redis"),
    Case("B105", waits="redis"),
    Case("B106", waits="redis"),
    Case("B107", waits="redis"),
    Case("B108", waits="redis"),
    Case("B111", waits="redis"),
    Case("B112", waits="redis"),
    Case("B113", waits="redis"),
    # J
    Case("B114", waits="jobs"),
    Case("B115", waits="jobs"),
    Case("B116", waits="jobs"),
    Case("B117", waits="jobs"),
    Case("B119", waits="jobs"),
    Case("B120", waits="jobs"),
    Case("B123", waits="jobs"),
    # K
    Case("B124", waits="adapters, prometheus"),
    Case("B125", here=True, waits="adapters, prometheus: the series"),
    Case("B126", waits="adapters, prometheus"),
    Case("B127", here=True),
    # L
    Case("B129", here=True),
    Case("B131", here=True),
    Case("B132", here=True, waits="rate limits"),
    Case("B134", here=True),
    # M
    Case("B135", here=True),
    Case("B136", here=True),
    Case("B137", here=True),
    Case("B139", here=True),
)
