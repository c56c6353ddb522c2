"""Which arguments of pretraining.train cannot be, alone or together.

Called by pretraining.py; it runs on the ranks, or in predict's process.
"""

import torch

from distlab_course.engine import TORCH, Engine
from distlab_course.recomputing import RECOMPUTE
from distlab_course.sizes import Size

FLOAT8 = ("no", "yes", "gathered")
DISPATCH = ("experts", "ranks", "hosts")


def check(
    recompute: str,
    float8: str,
    compiles_parts: bool,
    size: Size,
    expert: int,
    pipeline: int,
    stages: int,
    batch: int,
    microbatches: int,
) -> None:
    """Refuse what cannot be, before anything is made.

    Args:
        compiles_parts: whether blocks are compiled that tensor parallelism has divided.

    Raises:
        ValueError: which argument it is, and what to call instead.
    """
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute must be one of {RECOMPUTE}, got {recompute!r}.")
    if float8 not in FLOAT8:
        raise ValueError(f"float8 must be one of {FLOAT8}, got {float8!r}.")
    if compiles_parts and float8 != "no" and recompute == "none":
        raise ValueError(
            "recompute must not be 'none' in compiled float8 with tensor parallelism, got 'none': "
            "torch 2.13 loses the embedding's gradient there. Call train(..., recompute='op')."
        )
    if expert != 1 and size.experts is None:
        raise ValueError(f"expert must be 1 for a size without experts, got {expert!r}.")
    if stages > 1 and pipeline == 1:
        raise ValueError(
            f"stages must be 1 without a pipeline, got {stages!r}. "
            f"Call train(..., pipeline=2, stages={stages})."
        )
    if batch % microbatches:
        more = batch + microbatches - batch % microbatches
        raise ValueError(
            f"microbatches must divide the batch of {batch}, got {microbatches!r}. "
            f"Call train(..., microbatches={microbatches}, batch={more})."
        )


def check_dispatch(dispatch: str, expert: int, host: int) -> None:
    """Refuse ways of tokens that cannot be.

    Args:
        expert: how many ranks share experts.
        host: how many ranks are in a host.

    Raises:
        ValueError: which argument it is, and what to call instead.
    """
    if dispatch not in DISPATCH:
        raise ValueError(f"dispatch must be one of {DISPATCH}, got {dispatch!r}.")
    if dispatch == "hosts" and (host < 1 or (expert % host and host % expert)):
        raise ValueError(
            f"host must divide the {expert} ranks that share experts, or be a multiple of them, "
            f"got {host!r}. Call train(..., dispatch='ranks')."
        )


def check_engine(
    engine: Engine,
    compiles: bool,
    recompute: str,
    dtype: torch.dtype,
    reduce_dtype: torch.dtype,
) -> None:
    """Refuse what layers cannot do.

    Raises:
        ValueError: which argument it is, and what to call instead.
    """
    if engine != TORCH and compiles:
        raise ValueError(
            "compiles must be False for an engine other than torch's, got True: torch's compiler "
            "decides itself what layers keep. Call train(..., engine=TORCH)."
        )
    if engine.adds_in_products and reduce_dtype != dtype:
        raise ValueError(
            f"reduce_dtype must be dtype where products add up gradients, got {reduce_dtype!r}. "
            f"Call train(..., reduce_dtype={dtype})."
        )
    if engine.gathers_again and recompute != "none":
        raise ValueError(
            f"recompute must be 'none' where layers gather again, got {recompute!r}: what is "
            "computed again is gathered again already. Call train(..., recompute='none')."
        )
    if engine.recomputes_blocks and (engine.gathers_again or recompute != "none"):
        raise ValueError(
            "recomputes_blocks must be 0 where layers gather again, and where recompute is not "
            f"'none', got {engine.recomputes_blocks!r}. "
            "Call train(..., recompute='none', engine=Engine(gathers_again=False, "
            f"recomputes_blocks={engine.recomputes_blocks}))."
        )
    if engine.recomputes_long and recompute != "none":
        raise ValueError(
            f"recompute must be 'none' where engine.recomputes_long is, got {recompute!r}. "
            "Call train(..., recompute='none')."
        )
