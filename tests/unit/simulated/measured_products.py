"""Products of matrices that were measured and published, to compare the model with.

Plain data for test_products.py. A row has the source, device and number format of its shapes; a
shape is (groups, m, n, k, TFLOP/s).
"""

from __future__ import annotations

from typing import NamedTuple


class Rows(NamedTuple):
    """Shapes that were measured together."""

    source: str
    device: str
    dtype: str
    shapes: tuple[tuple[int, int, int, int, float], ...]


BFLOAT16, FLOAT8 = "bfloat16", "float8_e4m3fn"
MEASURED = (
    Rows(
        "github.com/deepseek-ai/DeepGEMM at a6d97a1, README.md, products",
        "H800",
        FLOAT8,
        (
            (1, 64, 2112, 7168, 206),
            (1, 64, 24576, 1536, 289),
            (1, 64, 32768, 512, 219),
            (1, 64, 7168, 16384, 336),
            (1, 64, 4096, 7168, 287),
            (1, 64, 7168, 2048, 295),
            (1, 128, 2112, 7168, 352),
            (1, 128, 24576, 1536, 535),
            (1, 128, 32768, 512, 358),
            (1, 128, 7168, 16384, 645),
            (1, 128, 4096, 7168, 533),
            (1, 128, 7168, 2048, 510),
            (1, 4096, 2112, 7168, 1058),
            (1, 4096, 24576, 1536, 990),
            (1, 4096, 32768, 512, 590),
            (1, 4096, 7168, 16384, 1358),
            (1, 4096, 4096, 7168, 1304),
            (1, 4096, 7168, 2048, 1025),
        ),
    ),
    Rows(
        "DeepGEMM at a6d97a1, README.md, grouped products, contiguous and masked",
        "H800",
        FLOAT8,
        (
            (4, 32768, 4096, 7168, 1297),
            (4, 32768, 7168, 2048, 1099),
            (8, 32768, 4096, 7168, 1288),
            (8, 32768, 7168, 2048, 1093),
            (1, 1024, 4096, 7168, 1233),
            (1, 1024, 7168, 2048, 925),
            (2, 1024, 4096, 7168, 1040),
            (2, 1024, 7168, 2048, 916),
            (4, 1024, 4096, 7168, 932),
            (4, 1024, 7168, 2048, 815),
        ),
    ),
    Rows(
        "github.com/vllm-project/vllm, pull request 23280",
        "H100",
        BFLOAT16,
        (
            (1, 64, 2112, 7168, 164),
            (1, 128, 2112, 7168, 276),
            (1, 256, 2112, 7168, 402),
            (1, 512, 2112, 7168, 566),
            (1, 1024, 2112, 7168, 620),
            (1, 2048, 2112, 7168, 648),
            (1, 4096, 2112, 7168, 716),
            (1, 8192, 2112, 7168, 666),
        ),
    ),
    Rows(
        "github.com/vllm-project/vllm, pull request 49363",
        "H100",
        BFLOAT16,
        (
            (1, 64, 12288, 5376, 183),
            (1, 128, 12288, 5376, 353),
            (1, 64, 43008, 5376, 188),
            (1, 128, 43008, 5376, 365),
            (1, 256, 43008, 5376, 593),
        ),
    ),
    Rows(
        "github.com/vllm-project/vllm, pull request 49363",
        "H100",
        FLOAT8,
        (
            (1, 64, 12288, 5376, 318),
            (1, 128, 12288, 5376, 582),
            (1, 64, 43008, 5376, 357),
            (1, 128, 43008, 5376, 647),
        ),
    ),
    Rows(
        "github.com/vllm-project/vllm, pull request 17126",
        "H100",
        BFLOAT16,
        (
            (1, 64, 6144, 4096, 161),
            (1, 128, 6144, 4096, 308),
            (1, 256, 6144, 4096, 544),
        ),
    ),
    Rows(
        "github.com/vllm-project/vllm, pull request 17126",
        "H100",
        FLOAT8,
        (
            (1, 64, 6144, 4096, 397),
            (1, 128, 6144, 4096, 693),
            (1, 256, 6144, 4096, 956),
        ),
    ),
    Rows(
        "github.com/stas00/ml-engineering at 744d01e, compute/accelerator/README.md: best shapes",
        "H100",
        BFLOAT16,
        ((1, 2048, 2048, 13312, 794),),
    ),
    Rows(
        "github.com/stas00/ml-engineering at 744d01e, compute/accelerator/README.md: best shapes",
        "H100",
        FLOAT8,
        ((1, 1024, 9216, 14336, 1403),),
    ),
    Rows(
        "github.com/stas00/ml-engineering at 744d01e, compute/accelerator/README.md: best shapes",
        "H200",
        FLOAT8,
        ((1, 1280, 4096, 12032, 1453),),
    ),
    Rows(
        "github.com/pytorch/pytorch, pull request 156203, grouped",
        "H200",
        BFLOAT16,
        ((16, 2048000, 7168, 7168, 705),),
    ),
    Rows(
        "github.com/tile-ai/TileOPs, pull request 1567, torch's column",
        "H200",
        BFLOAT16,
        (
            (256, 262144, 4096, 6144, 603),
            (256, 524288, 4096, 6144, 624),
            (256, 1048576, 4096, 6144, 617),
        ),
    ),
    Rows(
        "github.com/pytorch/FBGEMM, pull request 2546, limited to 500 W; float8 by rows",
        "H100, 500 W",
        BFLOAT16,
        (
            (1, 8192, 8192, 8192, 585),
            (1, 65536, 8192, 7168, 575),
            (1, 65536, 3584, 8192, 546),
        ),
    ),
    Rows(
        "github.com/pytorch/FBGEMM, pull request 2546, limited to 500 W; float8 by rows",
        "H100, 500 W",
        FLOAT8,
        (
            (1, 8192, 8192, 8192, 1125),
            (1, 65536, 8192, 7168, 1083),
            (1, 65536, 3584, 8192, 1141),
        ),
    ),
    Rows(
        "github.com/pytorch/ao, pull request 2490, grouped",
        "H100, 500 W",
        BFLOAT16,
        (
            (16, 8192, 8192, 5120, 525),
            (16, 8192, 5120, 8192, 545),
        ),
    ),
    Rows(
        "github.com/pytorch/ao, pull request 2490: groups in float8",
        "H100, 500 W",
        FLOAT8,
        ((16, 8192, 8192, 5120, 776),),
    ),
    Rows(
        "DeepGEMM, issue 107, the gradient of weights: groups in float8",
        "H200",
        FLOAT8,
        (
            (4, 28672, 4096, 4096, 813),
            (4, 8192, 7168, 4096, 814),
            (4, 28672, 4096, 8192, 858),
            (4, 8192, 7168, 8192, 873),
            (8, 57344, 4096, 4096, 816),
        ),
    ),
    Rows(
        "github.com/pytorch/ao at 0b1bb117, moe_training/README.md: groups in float8",
        "B200",
        FLOAT8,
        ((8, 131072, 2048, 7168, 2094),),
    ),
    Rows(
        "the same, the gradient of weights: groups in float8",
        "B200",
        FLOAT8,
        ((8, 16384, 7168, 16384, 1595),),
    ),
    Rows(
        "github.com/pytorch/pytorch, pull request 174699, C++, Blackwell: groups in float8",
        "B200",
        FLOAT8,
        (
            (8, 131072, 8192, 5120, 2326),
            (8, 131072, 1408, 2048, 1473),
            (8, 131072, 2048, 7168, 1926),
            (16, 131072, 8192, 5120, 2312),
        ),
    ),
    Rows(
        "github.com/Dao-AILab/quack, pull request 161, torch's column: groups in float8",
        "B200",
        FLOAT8,
        (
            (8, 16384, 8192, 5120, 2325),
            (8, 16384, 2048, 7168, 2313),
        ),
    ),
    Rows(
        "github.com/meta-pytorch/float8_experimental, pull request 100",
        "H100, 500 W",
        BFLOAT16,
        (
            (1, 16384, 1280, 8192, 552),
            (1, 16384, 8192, 1024, 551),
            (1, 16384, 7168, 8192, 559),
            (1, 16384, 8192, 3584, 591),
        ),
    ),
    Rows(
        "github.com/meta-pytorch/float8_experimental, pull request 100",
        "H100, 500 W",
        FLOAT8,
        (
            (1, 16384, 1280, 8192, 1408),
            (1, 16384, 8192, 1024, 1070),
            (1, 16384, 7168, 8192, 1309),
            (1, 16384, 8192, 3584, 1374),
        ),
    ),
    Rows(
        "github.com/stas00/ml-engineering at 744d01e, compute/accelerator/README.md: best shapes",
        "B200",
        BFLOAT16,
        ((1, 1792, 16128, 3072, 1745),),
    ),
    Rows(
        "github.com/stas00/ml-engineering at 744d01e, compute/accelerator/README.md: best shapes",
        "B200",
        FLOAT8,
        ((1, 15360, 4096, 3072, 3432),),
    ),
    Rows(
        "github.com/pytorch/ao, pull request 2427",
        "B200",
        BFLOAT16,
        (
            (1, 1024, 1024, 1024, 423),
            (1, 1536, 1536, 1536, 921),
            (1, 2048, 2048, 2048, 1130),
            (1, 3072, 3072, 3072, 1510),
            (1, 4096, 4096, 4096, 1410),
            (1, 6144, 6144, 6144, 1450),
            (1, 8192, 8192, 8192, 1420),
        ),
    ),
    Rows(
        "pyptx.dev/performance, cuBLAS's column",
        "B200",
        BFLOAT16,
        (
            (1, 2048, 2048, 2048, 1006),
            (1, 4096, 4096, 4096, 1532),
            (1, 4096, 8192, 8192, 1652),
            (1, 8192, 4096, 8192, 1648),
            (1, 8192, 8192, 8192, 1610),
        ),
    ),
    Rows(
        "github.com/vllm-project/vllm, pull request 18778",
        "B200",
        BFLOAT16,
        (
            (1, 64, 6144, 4096, 403),
            (1, 128, 6144, 4096, 727),
            (1, 256, 6144, 4096, 1112),
            (1, 512, 6144, 4096, 1338),
            (1, 1024, 6144, 4096, 1433),
        ),
    ),
    Rows(
        "github.com/vllm-project/vllm, pull request 18778",
        "B200",
        FLOAT8,
        (
            (1, 64, 6144, 4096, 533),
            (1, 128, 6144, 4096, 906),
            (1, 256, 6144, 4096, 1463),
            (1, 512, 6144, 4096, 1760),
            (1, 1024, 6144, 4096, 2207),
        ),
    ),
    Rows(
        "github.com/vllm-project/vllm, pull request 19566",
        "B200",
        BFLOAT16,
        (
            (1, 64, 4096, 4096, 286),
            (1, 128, 4096, 4096, 561),
            (1, 256, 4096, 4096, 893),
            (1, 512, 4096, 4096, 1336),
            (1, 1024, 4096, 4096, 1363),
            (1, 2048, 4096, 4096, 1444),
        ),
    ),
    Rows(
        "github.com/vllm-project/vllm, pull request 20071",
        "B200",
        BFLOAT16,
        (
            (1, 64, 8192, 2048, 357),
            (1, 128, 8192, 2048, 655),
            (1, 192, 8192, 2048, 896),
            (1, 256, 8192, 2048, 1058),
        ),
    ),
    Rows(
        "github.com/stas00/ml-engineering at 744d01e, compute/accelerator/README.md: best shapes",
        "GB200",
        BFLOAT16,
        ((1, 4096, 9728, 2048, 1822),),
    ),
    Rows(
        "github.com/stas00/ml-engineering at 744d01e, compute/accelerator/README.md: best shapes",
        "GB200",
        FLOAT8,
        ((1, 19456, 5120, 1536, 3616),),
    ),
    Rows(
        "github.com/stas00/ml-engineering at 744d01e, compute/accelerator/README.md: best shapes",
        "B300",
        BFLOAT16,
        ((1, 12288, 18432, 1024, 1769),),
    ),
    Rows(
        "github.com/stas00/ml-engineering at 744d01e, compute/accelerator/README.md: best shapes",
        "B300",
        FLOAT8,
        ((1, 3072, 6144, 7168, 3353),),
    ),
    Rows(
        "github.com/stas00/ml-engineering at 744d01e, compute/accelerator/README.md: best shapes",
        "A100",
        BFLOAT16,
        ((1, 1024, 10240, 5120, 271),),
    ),
    Rows(
        "github.com/facebookexperimental/triton, pull request 740, torch's column",
        "GB300",
        BFLOAT16,
        (
            (1, 8192, 8192, 512, 1596),
            (1, 8192, 8192, 1024, 1746),
            (1, 8192, 8192, 2048, 1752),
            (1, 8192, 8192, 4096, 1756),
            (1, 8192, 8192, 8192, 1717),
            (1, 8192, 8192, 16384, 1812),
        ),
    ),
    Rows(
        "github.com/NVIDIA/TransformerEngine at 8f2e635, docs/examples/gemm_profiling",
        "B300",
        BFLOAT16,
        (
            (1, 15872, 12288, 4096, 1492),
            (1, 15872, 4096, 4096, 1735),
            (1, 15872, 16384, 4096, 1529),
            (1, 15872, 4096, 16384, 1494),
        ),
    ),
    Rows(
        'AMD, "Measuring Max-Achievable FLOPs - Part 2": the best shape, random numbers',
        "MI300X",
        BFLOAT16,
        ((1, 4096, 4864, 32896, 708),),
    ),
    Rows(
        'AMD, "Measuring Max-Achievable FLOPs - Part 2": the best shape, random numbers',
        "MI300X",
        "float8_e4m3fnuz",
        ((1, 4096, 3648, 32896, 1273),),
    ),
    Rows(
        'thonking.ai, "Strangely, Matrix Multiplications on GPUs ...": random numbers',
        "A100",
        BFLOAT16,
        ((1, 8192, 8192, 8192, 258),),
    ),
    Rows(
        "github.com/mag-/gpu_benchmark: best shape, cold cache",
        "A100",
        BFLOAT16,
        ((1, 6912, 16384, 2048, 268),),
    ),
    Rows(
        "github.com/triton-lang/triton, issue 743, float16",
        "A100",
        BFLOAT16,
        (
            (1, 4096, 4096, 4096, 213),
            (1, 8192, 8192, 8192, 273),
        ),
    ),
    Rows(
        "triton, issue 6523",
        "A100",
        BFLOAT16,
        (
            (1, 1024, 1024, 1024, 78),
            (1, 1280, 1280, 1280, 102),
            (1, 1536, 1536, 1536, 142),
            (1, 2048, 2048, 2048, 143),
            (1, 2304, 2304, 2304, 160),
            (1, 2560, 2560, 2560, 161),
            (1, 2816, 2816, 2816, 158),
        ),
    ),
    Rows(
        "triton, issue 7085",
        "A100",
        BFLOAT16,
        (
            (1, 1024, 1024, 1024, 100),
            (1, 1152, 1152, 1152, 130),
        ),
    ),
)
