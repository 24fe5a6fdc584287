"""Two binary trees over the same nodes, in which a node that branches in one is a leaf in the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]


def parents(nodes: int) -> Index:
    """Parent of each node in the in-order binary tree, -1 for the root (node 0, which has one child).

    A node's lowest set bit says how high it stands; its parent is the node with the next higher bit set instead, or
    without it where the tree ends before.
    """
    found = np.full(nodes, -1, dtype=np.int64)
    child = np.arange(1, nodes)
    bit = child & -child
    above = (child ^ bit) | (bit << 1)
    found[1:] = np.where(above < nodes, above, child ^ bit)
    return found


def pair_of_trees(nodes: int) -> tuple[Index, Index]:
    """Parents in the tree and in its twin: mirrored for an even number of nodes, moved by one for an odd one."""
    first = parents(nodes)
    label = np.arange(nodes)
    role = nodes - 1 - label if nodes % 2 == 0 else (label - 1) % nodes
    actor = np.argsort(role)
    above = first[role]
    return first, np.where(above < 0, -1, actor[above])


def double_tree(nodes: int, level: Callable[[Any, Any], Index], levels: int) -> tuple[list[int], list[int]]:
    """Depth of the two trees and halves of the buffer that the busiest node sends (up once, down to each child).

    Parameters
    ----------
    nodes : int
        At least one.
    level : callable
        Tier over which two nodes talk, elementwise.
    levels : int
        Number of tiers.

    Returns
    -------
    depth, halves : list of int
        By tier: hops on the slowest way from a leaf to the root; messages of the busiest node in both trees.
    """
    sent = np.zeros((levels, nodes), dtype=np.int64)
    longest: tuple[int, ...] = (0,) * levels
    for parent in pair_of_trees(nodes):
        child = np.flatnonzero(parent >= 0)
        over = level(child, parent[child])
        np.add.at(sent, (over, child), 1)
        np.add.at(sent, (over, parent[child]), 1)
        longest = max(longest, _longest(parent, child, over, levels))
    return list(reversed(longest)), [int(most) for most in sent.max(axis=1)]


def _longest(parent: Index, child: Index, over: Index, levels: int) -> tuple[int, ...]:
    """Hops by tier, outermost first, on the way from a leaf to the root that crosses most."""
    hops = np.zeros((len(parent), levels), dtype=np.int64)
    own = np.zeros_like(hops)
    own[child, levels - 1 - over] = 1
    above = np.arange(len(parent))
    while (above >= 0).any():  # one turn a level of the tree
        there = above >= 0
        hops[there] += own[above[there]]
        above = np.where(there, parent[above], -1)
    return max(tuple(row) for row in hops.tolist())
