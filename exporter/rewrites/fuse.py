"""All rewrites of a traced graph, in their order."""

from __future__ import annotations

from specc.exporter.graph.graph import Graph
from specc.exporter.graph.names import name_weights
from specc.exporter.rewrites.drop_reshape import drop_reshape
from specc.exporter.rewrites.fuse_lm_head import fuse_lm_head
from specc.exporter.rewrites.fuse_norm import fuse_norm
from specc.exporter.rewrites.fuse_qkv import fuse_qkv
from specc.exporter.rewrites.fuse_rotary import fuse_rotary
from specc.exporter.rewrites.fuse_skip_norm import fuse_skip_norm

REWRITES = (name_weights, fuse_norm, fuse_skip_norm, fuse_rotary, fuse_qkv, fuse_lm_head, drop_reshape)


def fuse_graph(graph: Graph) -> Graph:
    """Traced graph -> graph of fused operators; each rewrite leaves alone what it does not recognise."""
    for rewrite in REWRITES:
        graph = rewrite(graph)
    return graph
