"""The sizes of models have the published numbers of parameters, and so has the model of each."""

import pytest
import torch

from distlab_course.llama import Llama
from distlab_course.sizes import SIZES, active_parameters, parameters

# Published, in billions, of all and of those that a token meets: the papers and model cards of
# Llama 3, Mixtral, DeepSeek-V2 and V3, Qwen3, Llama 4 and gpt-oss. gpt-oss and
# DeepSeek-V2 count no embedding among those that a token meets, and Llama 4's total has its vision,
# of 1.2 billion.
PUBLISHED = {
    "8B": (8.03, 8.03),
    "70B": (70.6, 70.6),
    "405B": (405.9, 405.9),
    "Mixtral 8x7B": (46.7, 12.9),
    "Mixtral 8x22B": (140.6, 39.1),
    "DeepSeek-V2-Lite": (15.7, 2.4 + 0.21),
    "DeepSeek-V3": (671, 37),
    "Qwen3-30B-A3B": (30.5, 3.3),
    "Qwen3-235B-A22B": (235, 22),
    "Llama 4 Scout": (109 - 1.2, 17),
    "gpt-oss 20B": (20.91, 3.61 + 0.579),
    "gpt-oss 120B": (116.83, 5.13 + 0.579),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_has_the_published_number_of_parameters(name):
    published, active = PUBLISHED[name]
    assert parameters(SIZES[name]) / 1e9 == pytest.approx(published, rel=0.003)
    assert active_parameters(SIZES[name]) / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize("name", ["8B", "DeepSeek-V2-Lite", "DeepSeek-V3", "Qwen3-30B-A3B"])
def test_the_formula_counts_what_the_model_has(name):
    with torch.device("meta"):
        model = Llama(SIZES[name])
    assert parameters(SIZES[name]) == sum(one.numel() for one in model.parameters())
