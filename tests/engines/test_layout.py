"""Where the tokens of a pass lie, and which rows attend together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from swarm.engines.transformers import layout
from swarm.engines.transformers.layout import Layout, Unread, layouts

CPU = torch.device("cpu")
DECODING = [Unread(0, 4, [10]), Unread(1, 9, [11])]
READING = [Unread(2, 3, [12, 13, 14]), Unread(3, 0, [15]), Unread(4, 2, [16, 17])]


def laid_out(rows: list[Unread], can_join: bool = True) -> list[Layout]:
    return list(layouts(rows, can_join, CPU))


def test_rows_that_decode_lie_side_by_side_and_are_read_without_a_copy() -> None:
    (only,) = laid_out(DECODING)
    assert only.ids.tolist() == [[10], [11]] and only.positions.tolist() == [[4], [9]]
    assert only.read == slice(0, 2) and only.width == 10 and only.last == 1 and not only.groups


def test_rows_that_read_follow_in_the_same_pass_without_padding() -> None:
    (only,) = laid_out(DECODING + READING)
    assert only.ids.tolist() == [[10, 11, 12, 13, 14, 15, 16, 17]]
    assert only.slots.tolist() == [[0, 1, 2, 2, 2, 3, 4, 4]]
    assert only.positions.tolist() == [[4, 9, 3, 4, 5, 0, 2, 3]]
    assert only.last.tolist() == [0, 1, 4, 5, 7]
    assert [group.rows for group in only.groups] == [slice(0, 2), slice(2, 5)]
    assert [group.tokens.tolist() for group in only.groups] == [[[0], [1]], [[2, 3, 4], [5, 5, 5], [6, 7, 7]]]


def test_a_model_that_cannot_join_them_takes_a_pass_for_each() -> None:
    decoding, reading = laid_out(DECODING + READING, can_join=False)
    assert decoding.ids.tolist() == [[10], [11]]
    assert reading.ids.tolist() == [[12, 13, 14], [15, 15, 15], [16, 17, 17]]
    assert reading.positions.tolist() == [[3, 4, 5], [0, 0, 0], [2, 3, 3]]
    assert reading.read == slice(2, 5)


def test_a_pass_reads_a_bounded_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "READ_TOKENS", 4)
    first, second = laid_out(DECODING + READING)
    assert [row.slot for row in first.rows] == [0, 1, 2] and first.groups
    assert [row.slot for row in second.rows] == [3, 4] and not second.groups


@pytest.mark.parametrize("can_join", [True, False])
def test_each_row_gets_the_experts_of_its_own_tokens(can_join: bool) -> None:
    for each in laid_out(DECODING + READING, can_join):
        chosen = each.ids.reshape(-1, 1, 1).numpy().astype(np.uint16)  # as if a token chose the expert of its number
        for row, experts in zip(each.rows, each.by_row(chosen), strict=True):
            assert experts.ravel().tolist() == row.tokens
