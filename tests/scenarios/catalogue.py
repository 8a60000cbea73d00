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
    Case("B19", here=True, waits="part 4, closed streams"),
    # B
    Case("B21", here=True),
    Case("B22", here=True),
    Case("B23", waits="part 2, nested"),
    Case("B24", here=True),
    Case("B25", here=True),
    Case("B27", here=True, waits="redis: a lease that never comes"),
    Case("B28", here=True),
    Case("B29", waits="never: one call is one slot, the name `weight` is reserved"),
    Case("B30", here=True),
    Case("B32", here=True, waits="redis: a lease that is refused"),
    Case("B34", here=True),
    Case("B35", here=True, waits="map: waits for room"),
    # C
    Case("B37", here=True),
    Case("B38", here=True),
    Case("B39", here=True),
    Case("B41", waits="part 3, binds AdaptivePolicy"),
    Case("B42", here=True),
    Case("B43", here=True),
    Case("B45", waits="part 3, binds AdaptivePolicy"),
    Case("B46", here=True),
    Case("B48", waits="part 3, binds AdaptivePolicy"),
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
    Case("B66", waits="section E, not written yet"),
    Case("B67", waits="section E, not written yet"),
    Case("B70", waits="section E, not written yet"),
    Case("B71", waits="section E, not written yet"),
    Case("B72", waits="section E, not written yet"),
    Case("B73", waits="section E, not written yet"),
    # F
    Case("B75", waits="section F, not written yet"),
    Case("B76", waits="section F, not written yet"),
    Case("B77", waits="section F, not written yet"),
    Case("B78", waits="section F, not written yet"),
    Case("B80", waits="redis"),
    Case("B81", waits="section F, not written yet"),
    Case("B82", waits="section F, not written yet"),
    # G
    Case("B84", waits="part 4, streams"),
    Case("B85", waits="part 4, streams"),
    Case("B87", waits="part 4, streams"),
    Case("B88", waits="part 4, streams"),
    Case("B89", waits="part 4, streams"),
    Case("B90", waits="part 4, streams"),
    # H
    Case("B92", waits="section H, not written yet"),
    Case("B93", waits="section H, not written yet"),
    Case("B94", waits="section H, not written yet"),
    Case("B96", waits="section H, not written yet"),
    Case("B97", waits="section H, not written yet"),
    Case("B98", waits="section H, not written yet"),
    Case("B99", waits="section H, not written yet"),
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
    Case("B124", waits="section K, not written yet"),
    Case("B125", waits="section K, not written yet"),
    Case("B126", waits="section K, not written yet"),
    Case("B127", waits="section K, not written yet"),
    # L
    Case("B129", waits="section L, not written yet"),
    Case("B131", waits="section L, not written yet"),
    Case("B132", waits="section L, not written yet"),
    Case("B134", waits="section L, not written yet"),
    # M
    Case("B135", waits="section M, not written yet"),
    Case("B136", waits="section M, not written yet"),
    Case("B137", waits="section M, not written yet"),
    Case("B139", waits="section M, not written yet"),
)
