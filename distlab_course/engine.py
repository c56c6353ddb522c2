"""How layers compute, and what they keep, where Transformer Engine does otherwise than torch.

Called by pretraining.py; it runs on the ranks, or in predict's process.

    engine = Engine(adds_in_products=True, repeats_keys=False)
    pretraining.train(rank, world_size, size=size, engine=engine)
"""

from dataclasses import dataclass

from distlab_course.adding import add_in_products
from distlab_course.experts_apart import compute_apart
from distlab_course.float8_grouped import Kept
from distlab_course.float8_once import cast_once
from distlab_course.latent import LatentAttention
from distlab_course.llama import Llama
from distlab_course.recomputing import recomputed, recomputed_but_attention


@dataclass(frozen=True)
class Engine:
    """What a library computes with; the defaults are torch's.

    Attributes:
        adds_in_products: whether the products that make gradients of weights add them to those of
            the micro-batches before, instead of kernels of their own. If what FSDP gathered stays,
            experts' weights in float8, and transposed copies of those that are gathered in float8,
            are made once in a step, and not by each pass. FSDP must add up gradients in the format
            in which they are computed.
        casts_once: whether linear layers in float8 that are given the same cast it once for all of
            them, and keep that for the backward pass instead of what they were given.
        experts_apart: whether each expert of a rank is multiplied by a kernel of its own, as in
            Transformer Engine until 2.16, instead of one kernel for all.
        gathers_again: whether what ranks of tensor parallelism gather for attention and
            feed-forward layers is let go after the forward pass, and gathered again for the
            backward pass. It needs a program that keeps all else. In float8, products that add to
            gradients of weights are then computed while the ranks add up those of what they
            gathered, as in Megatron-LM.
        repeats_keys: whether keys and values are repeated for the queries that share them, or the
            kernel of attention does without.
        recomputes_blocks: how many blocks of a part of the model, the first ones, are computed
            again by the backward pass.
        recomputes_long: whether latent attention keeps short vectors, and makes queries, keys and
            values of them again, which are long.
    """

    adds_in_products: bool = False
    casts_once: bool = False
    experts_apart: bool = False
    gathers_again: bool = False
    repeats_keys: bool = True
    recomputes_blocks: int = 0
    recomputes_long: bool = False


TORCH = Engine()


def use(engine: Engine, model: Llama, kept: Kept | None, is_split: bool) -> None:
    """Have the layers of a model compute like this; `split` has had it gather again.

    Runs on: every rank.

    Args:
        model: changed in place.
        kept: as of `add_in_products`.
        is_split: whether ranks of tensor parallelism share its layers.
    """
    if engine.experts_apart:
        compute_apart(model)
    if engine.adds_in_products:
        add_in_products(model, kept)
    if engine.casts_once:
        cast_once(model, is_split)
    for attention in model.attentions():
        attention.repeats = engine.repeats_keys
        if engine.recomputes_long and isinstance(attention, LatentAttention):
            attention.attended = recomputed_but_attention(attention.attended)  # type: ignore[method-assign]
    for block in list(model.blocks.values())[: engine.recomputes_blocks]:
        block.forward = recomputed(block.forward, some=False)
