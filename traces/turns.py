"""Linked turns: sessions, parents, and which later prompt shows what an answer's tokens were."""

from __future__ import annotations

import numpy as np

from .prefix import number_by_first_appearance
from .ragged import flat_indices, pointers
from .trace import Int32, Int64


def parents_in_sessions(session: Int32) -> Int32:
    """The row before each in its session, -1 for none, int32 [n]; `session` in arrival order, -1 for none."""
    order = np.argsort(session, kind="stable")
    by_session = session[order]
    follows = (by_session[1:] == by_session[:-1]) & (by_session[1:] >= 0)
    parent = np.full(len(session), -1, dtype=np.int32)
    parent[order[1:][follows]] = order[:-1][follows]
    return parent


def parents_by_name(own: Int32, parent: Int32) -> Int32:
    """The row each row's parent name stands for, -1 for none or for one that is not earlier, int32 [n].

    Args:
        own: int32 [n], dense numbers of the rows' names, -1 for none.
        parent: int32 [n], the same numbers for the rows' parents.
    """
    rows = np.full(int(max(own.max(), parent.max())) + 2, -1, dtype=np.int32)
    rows[own[::-1]] = np.arange(len(own) - 1, -1, -1, dtype=np.int32)
    rows[-1] = -1  # where names of -1 landed
    found = rows[parent]
    return np.where(found < np.arange(len(own)), found, -1).astype(np.int32)


def sessions_of(parent: Int32) -> Int32:
    """Dense session numbers from parent links to earlier rows: one for each tree of turns, int32 [n]."""
    rows = np.arange(len(parent))
    root = np.where(parent >= 0, parent, rows)
    while not np.array_equal(root, root[root]):
        root = root[root]
    return number_by_first_appearance(root)[0]


def cover_answers(
    nodes: Int32, ptr: Int64, covered: Int32, parent: Int32, prompt: Int32, output: Int32, granularity: int
) -> tuple[Int32, Int64, Int32]:
    """Give answers the nodes of the next turn's prompt, where that prompt begins with the one answered.

    A turn's nodes from its last full prompt block on become those of its first follower that begins with the
    same full blocks; they then cover the answer as far as the follower's prompt goes. Rows whose answers are
    known already (`covered` beyond the prompt) keep their nodes.

    Returns:
        New `nodes`, `ptr` and `covered`.
    """
    full = (prompt // granularity).astype(np.int64)
    follower = _followers(nodes, ptr, covered, parent, prompt, full)
    turns = np.flatnonzero(follower >= 0)
    if len(turns) == 0:
        return nodes, ptr, covered
    covered = covered.copy()
    reach = np.minimum(prompt[turns].astype(np.int64) + output[turns], prompt[follower[turns]])
    covered[turns] = reach
    counts = np.diff(ptr)
    counts[turns] = -(-reach // granularity)
    new_ptr = pointers(counts)
    column = flat_indices(np.zeros(len(counts), dtype=np.int64), counts)
    row = np.repeat(np.arange(len(counts)), counts)
    # A follower's own last block may in turn be taken from its follower: go on until nothing moves.
    while True:
        moves = (follower[row] >= 0) & (column >= full[row])
        if not moves.any():
            break
        row = np.where(moves, follower[row], row)
    return number_by_first_appearance(nodes[ptr[row] + column])[0], new_ptr, covered


def _followers(nodes: Int32, ptr: Int64, covered: Int32, parent: Int32, prompt: Int32, full: Int64) -> Int64:
    """For each row its first linked row whose prompt goes on from it, -1 for none, int64 [n]."""
    child = np.flatnonzero(parent >= 0)
    of = parent[child]
    fits = (prompt[child] >= prompt[of]) & (covered[of] == prompt[of])
    child, of = child[fits], of[fits]
    last = np.maximum(full[of] - 1, 0)
    same = (full[of] == 0) | (nodes[ptr[child] + last] == nodes[ptr[of] + last])
    child, of = child[same], of[same]
    follower = np.full(len(parent), -1, dtype=np.int64)
    follower[of[::-1]] = child[::-1]
    return follower
