"""How wide and deep models are, and how many numbers that makes.

Called by llama.py, pretraining.py and benchmarks; plain data, which needs no torch. It runs
anywhere.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Experts:
    """Of a mixture of experts, which has many small feed-forward layers instead of one.

    Attributes:
        number: experts of a layer, among which the router chooses.
        chosen: how many of them each token goes to.
        hidden: numbers between the two halves of one expert.
        shared: numbers between the two halves of what every token goes to; 0 for nothing.
        dense: layers at the front of the model that have one feed-forward layer instead.
        scores: how the router's outputs become shares, "softmax" over all experts or "sigmoid".
        normalized: whether the shares of a token's experts add up to 1.
        scale: by which the shares are multiplied.
        groups, groups_chosen: the experts are in so many groups, and those of a token are from so
            many of them.
        balanced: whether a bias on the scores, for the choice alone, evens out the loads.
    """

    number: int
    chosen: int
    hidden: int
    shared: int = 0
    dense: int = 0
    scores: str = "softmax"
    normalized: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_chosen: int = 1
    balanced: bool = False


@dataclass(frozen=True)
class Latent:
    """Of an attention whose keys and values, and maybe queries, come from a short vector.

    Attributes:
        keys: numbers of the vector from which the keys and values of all heads are made.
        queries: of that for queries; None if they are made from the token's whole vector.
        plain: numbers of a head's query and key that know nothing of their place.
        turned: those that turn with their place; of a key, all heads share them.
        values: numbers of a head's value.
    """

    keys: int
    queries: int | None
    plain: int
    turned: int
    values: int


@dataclass(frozen=True)
class Size:
    """How wide and deep a model is."""

    width: int  # numbers of a token's vector
    layers: int
    heads: int  # of queries
    hidden: int  # numbers between the two halves of a feed-forward layer
    kv_heads: int = 8  # of keys and values, which the heads of queries share
    vocabulary: int = 128256
    head: int | None = None  # numbers of a head's query; None for width / heads
    normed: bool = False  # whether each head's query and key has a norm
    experts: Experts | None = None
    latent: Latent | None = None

    @property
    def head_width(self) -> int:
        """Numbers of a head's query."""
        return self.head or self.width // self.heads


# Llama 3: "The Llama 3 Herd of Models" (2024), table 3. The others: config.json of mistralai,
# deepseek-ai, Qwen, meta-llama and openai on huggingface.co. Not in the models here: the vision of
# Llama 4, the second prediction of DeepSeek-V3, the biases, windows and sinks of gpt-oss.
SIZES = {
    "8B": Size(4096, 32, 32, 14336),
    "70B": Size(8192, 80, 64, 28672),
    "405B": Size(16384, 126, 128, 53248),
    "Mixtral 8x7B": Size(4096, 32, 32, 14336, 8, 32000, experts=Experts(8, 2, 14336)),
    "Mixtral 8x22B": Size(6144, 56, 48, 16384, 8, 32768, experts=Experts(8, 2, 16384)),
    "DeepSeek-V2-Lite": Size(
        2048,
        27,
        16,
        10944,
        vocabulary=102400,
        experts=Experts(64, 6, 1408, shared=2 * 1408, dense=1, normalized=False),
        latent=Latent(keys=512, queries=None, plain=128, turned=64, values=128),
    ),
    "DeepSeek-V3": Size(
        7168,
        61,
        128,
        18432,
        vocabulary=129280,
        experts=Experts(
            256,
            8,
            2048,
            shared=2048,
            dense=3,
            scores="sigmoid",
            scale=2.5,
            groups=8,
            groups_chosen=4,
            balanced=True,
        ),
        latent=Latent(keys=512, queries=1536, plain=128, turned=64, values=128),
    ),
    "Qwen3-30B-A3B": Size(
        2048, 48, 32, 6144, 4, 151936, head=128, normed=True, experts=Experts(128, 8, 768)
    ),
    "Qwen3-235B-A22B": Size(
        4096, 94, 64, 12288, 4, 151936, head=128, normed=True, experts=Experts(128, 8, 1536)
    ),
    "Llama 4 Scout": Size(
        5120,
        48,
        40,
        16384,
        vocabulary=202048,
        experts=Experts(16, 1, 8192, shared=8192, scores="sigmoid", normalized=False),
    ),
    "gpt-oss 20B": Size(2880, 24, 64, 2880, 8, 201088, head=64, experts=Experts(32, 4, 2880)),
    "gpt-oss 120B": Size(2880, 36, 64, 2880, 8, 201088, head=64, experts=Experts(128, 4, 2880)),
}


def parameters(size: Size) -> int:
    """The numbers that training changes, by formula; `parameters(SIZES["8B"])` is 8,030,261,248."""
    return _numbers(size, size.experts.number if size.experts else 0)


def active_parameters(size: Size) -> int:
    """Those of them that one token meets: of each layer's experts, the chosen ones alone."""
    return _numbers(size, size.experts.chosen if size.experts else 0)


def _numbers(size: Size, experts: int) -> int:
    """The numbers of a model with so many experts in a layer, whatever its router chooses from."""
    ends = 2 * size.vocabulary * size.width + size.width
    layers = size.layers * (_attention(size) + 2 * size.width)
    if size.experts is None:
        return ends + layers + size.layers * 3 * size.width * size.hidden
    dense = size.experts.dense * 3 * size.width * size.hidden
    router = size.width * size.experts.number
    mixed = 3 * size.width * (experts * size.experts.hidden + size.experts.shared)
    mixtures = (size.layers - size.experts.dense) * (router + mixed)
    return ends + layers + dense + mixtures


def _attention(size: Size) -> int:
    """The numbers of one layer's attention."""
    latent = size.latent
    if latent is None:
        queries = size.heads * size.head_width
        keys = size.kv_heads * size.head_width
        norms = 2 * size.head_width if size.normed else 0
        return 2 * size.width * (queries + keys) + norms
    of_queries = size.heads * (latent.plain + latent.turned)
    if latent.queries is None:
        queries = size.width * of_queries
    else:
        queries = latent.queries * (size.width + 1 + of_queries)
    short = size.width * (latent.keys + latent.turned) + latent.keys
    long = latent.keys * size.heads * (latent.plain + latent.values)
    return queries + short + long + size.heads * latent.values * size.width
