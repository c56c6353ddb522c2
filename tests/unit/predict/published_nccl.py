"""Published tables of nccl-tests, by size. Seconds are facts; each table names its source.

The first size is that of a row's first number, and each following size is twice the one before.
Sizes are nccl-tests' own: those of the whole buffer. Times are out of place, in microseconds.
"""

from dataclasses import dataclass, field

from distlab.simulated.network import Link

KIB = 1 << 10
MIB = 1 << 20
# RoCE, and cards of virtual machines: their latency is such that a table's first row is right
SLOWER = {
    "A100 hosts": Link("6 us", "100 Gb/s"),
    "H100 hosts": Link("6 us", "400 Gb/s"),
    "B200 hosts": Link("4 us", "400 Gb/s"),
}


@dataclass(frozen=True)
class Row:
    """The times of a collective.

    Attributes:
        name: of the collective.
        first: the first size, in bytes.
        times: in microseconds, as a text.
    """

    name: str
    first: int
    times: str

    @property
    def by_size(self) -> list[tuple[int, float]]:
        """Size in bytes and microseconds."""
        return [(self.first << power, float(took)) for power, took in enumerate(self.times.split())]


@dataclass(frozen=True)
class Published:
    """A table.

    Attributes:
        name: of the machine.
        source: where it is published.
        network: what distlab calls it.
        hosts: the numbers of ranks.
        start: microseconds of the smallest calls, where one process starts them on all GPUs of a
            host, one after another: that is not NCCL's time, and training has a process for each.
        changes: of the named network, that the source names.
        rows: by collective.
    """

    name: str
    source: str
    network: str
    hosts: list[int]
    rows: list[Row]
    start: float = 0.0
    changes: dict[str, object] = field(default_factory=dict)


TABLES = [
    Published(
        name="8 A100",
        source=(
            "microsoft/superbenchmark, "
            "tests/benchmarks/micro_benchmarks/test_cuda_nccl_bw_performance.py at "
            "ae2ccdf (one process)"
        ),
        network="A100 hosts",
        hosts=[8],
        start=33.5,
        rows=[
            Row(
                "all_reduce",
                1 * KIB,
                "36.07 35.42 35.92 35.91 36.18 36.65 37.82 41.19 47.53 60.32 74.78 93.48 "
                "112 162 226 374.3 584.5 1162.2 2112.2 4200.3 8159.5 16215 32070 63896",
            ),
            Row(
                "all_gather",
                1 * KIB,
                "35.38 34.67 34.62 34.76 34.8 34.54 36.34 40.18 46.45 58.48 72.95 77.28 "
                "100.7 123.5 167.7 265.8 379.7 698.6 1192.2 2304.1 4413.4 8658.8 17016 "
                "33646",
            ),
            Row(
                "reduce_scatter",
                1 * KIB,
                "35.16 35.43 35.49 35.18 35.27 35 36.78 40.71 48.12 59.81 72.37 80.64 108.9 "
                "147.3 152.4 240.5 356.1 618.1 1108.7 2169 4203 8356.9 16400 32464",
            ),
            Row(
                "all_to_all",
                1 * MIB,
                "87.42 89.61 96.44 121.1 160.4 237.5 396.8 633.6 1189.1 2236.6 4335.5 "
                "8510.4 16860 33508",
            ),
            Row(
                "broadcast",
                64 * KIB,
                "36.04 40.09 46.58 58.37 76.02 78.12 81.06 97.2 143.1 223.4 374.8 672.2 "
                "1271.5 2436.3 4769.2 9314.2 18487 36896",
            ),
        ],
    ),
    Published(
        name="8 A100, a process for each GPU",
        source='notes on nccl-tests of a host "thanos", A100-SXM4-80GB',
        network="A100 hosts",
        hosts=[8],
        rows=[
            Row(
                "all_reduce",
                1 * KIB,
                "24.43 24.32 25.29 25.84 26.15 30.25 31.82 31.9 27.65 28.11 37.89 55.39 "
                "81.66 130.6 213.3 377.6 615.7 1181.6 2218.2 4248.8 8244.5 16288 32285",
            ),
        ],
    ),
    Published(
        name="16 A100 by RoCE",
        source=(
            "oracle-quickstart/oci-hpc-oke, docs/running-rdma-workloads-on-oke-a100.md; its hosts "
            "have 1.6 Tb/s, by cards of 100 Gb/s"
        ),
        network="A100 hosts",
        hosts=[8, 8],
        changes={"rails": 16, "between": SLOWER["A100 hosts"]},
        rows=[
            Row(
                "all_reduce",
                1 * KIB,
                "41.97 43.36 44.54 48.16 49.4 49.66 51.69 54.86 67.95 73.94 85.58 99.19 127 "
                "174.3 282.7 452.3 821.7 1542 3042.7 6436 9187.8 18289 34176 67689",
            ),
        ],
    ),
    Published(
        name="2 H100",
        source="guide to nccl-tests on a host am4g2r31bm1 (one process)",
        network="H100 hosts",
        hosts=[2],
        start=12.2,
        rows=[
            Row(
                "all_reduce",
                1 * KIB,
                "15.75 14.16 13.1 12.32 12.17 12.68 14.05 15.62 17.68 17.23 26.3 30.67 "
                "35.13 47.86 73.28 127.7 223.4 415 792.7 1541.7 2996.1",
            ),
        ],
    ),
    Published(
        name="8 H100",
        source=(
            "github.com/NVIDIA/nccl-tests/issues/290; all-gather: issues/1281 of "
            "NVIDIA/nccl names 350 to 360 GB/s; reduce-scatter: issues/1047 of NVIDIA/nccl"
        ),
        network="H100 hosts",
        hosts=[8],
        rows=[
            Row(
                "all_reduce",
                128 * MIB,
                "613.3 1139.2 2175.8 4038.8 8020.3 15870",
            ),
            Row(
                "all_gather",
                8192 * MIB,
                "20837 41593",
            ),
            Row(
                "reduce_scatter",
                128 * MIB,
                "377.2 709.7 1377.8 2689.3 5295.9 10505 20754",
            ),
        ],
    ),
    Published(
        name="16 H100",
        source="github.com/NVIDIA/nccl-tests/issues/309, NCCL 2.26.2",
        network="H100 hosts",
        hosts=[8, 8],
        rows=[
            Row(
                "all_reduce",
                1 * KIB,
                "26.65 28.19 30.24 32.12 32.74 34.1 33.84 38.77 48.67 77.69 71.93 76.24 "
                "94.38 132.6 185.4 267.9 466.1 748.3 1282.8 2357.6 4484.9 8729.8 17262 "
                "34381",
            ),
        ],
    ),
    Published(
        name="32 H100",
        source="the same issue, NCCL 2.26.2",
        network="H100 hosts",
        hosts=[8] * 4,
        rows=[
            Row(
                "all_reduce",
                1 * KIB,
                "39.79 39.59 42.18 46.84 48.51 49.13 50.83 55.87 67.82 72.88 82.17 191.3 "
                "151.1 217.3 259.6 376 579.1 990.7 1768 3109",
            ),
        ],
    ),
    Published(
        name="64 H100",
        source="the same issue, another cluster",
        network="H100 hosts",
        hosts=[8] * 8,
        rows=[
            Row(
                "all_reduce",
                1 * MIB,
                "117 143.4 203.8 321.4 378.1 509.6 718.1 1159.1 1955.1 3517.3 7370.5 13252 "
                "26438 52733",
            ),
        ],
    ),
    Published(
        name="1024 H100",
        source=("an issue of NVIDIA/nccl-tests of 2025-06 on 128 hosts, HCA-1 to HCA-128"),
        network="H100 hosts",
        hosts=[8] * 128,
        rows=[
            Row(
                "all_reduce",
                4096 * MIB,
                "25377 47078 93457",
            ),
        ],
    ),
    Published(
        name="16 H200 by RoCE",
        source="notes on nvidiatools-dell-h200 in OpenShift, NCCL 2.30.4",
        network="H100 hosts",
        hosts=[8, 8],
        changes={"between": SLOWER["H100 hosts"]},
        rows=[
            Row(
                "all_reduce",
                1 * KIB,
                "45.06 43.84 43.51 47.64 53.65 64.93 70.32 81.24 63.59 80.78 76.86 86.37 "
                "106.13 149.76 207.61 276.88 461.01 742.13 1275.21 2327.12 4388.55 8497.37 "
                "16715.2 33169.3",
            ),
        ],
    ),
    Published(
        name="8 B200",
        source='"B200 / Vultr POC, cluster test summary", 2026-05-18, section 10',
        network="B200 hosts",
        hosts=[8],
        rows=[
            Row(
                "all_reduce",
                1 * KIB,
                "25.47 25.98 26.37 26.44 26.69 27.41 28.39 28.9 29.22 29.63 30.1 34.29 "
                "56.17 76.96 106.99 169.72 277.18 394.59 712.6 1334.6 2601.84 4605.28 "
                "9026.71 17919.9",
            ),
            Row(
                "all_gather",
                1 * KIB,
                "16.42 16.74 16.88 17.13 17.1 17.93 18.7 18.87 19.21 19.89 19.69 22.35 "
                "29.96 44.92 49.04 76.98 139.13 207.5 393.96 762.42 1486.06 2911.01 5723.35 "
                "11322.8",
            ),
            Row(
                "reduce_scatter",
                1 * KIB,
                "16.4 16.66 17 16.82 17.42 17.67 18.52 18.5 19.31 20.06 19.7 23.9 34.26 "
                "58.36 52.3 80.28 138.64 206.09 388.79 753.29 1451.69 2808.62 5552.57 "
                "10912.1",
            ),
            Row(
                "all_to_all",
                1 * KIB,
                "11.11 11.12 11.25 11.37 11.97 11.81 12.44 12.92 13.68 14.53 18.09 23.52 "
                "38.84 34.62 51.3 83.13 135.03 236.72 438.78 840.31 1553.29 3040.54 5704.03 "
                "11246.2",
            ),
        ],
    ),
    Published(
        name="16 B200",
        source="the same",
        network="B200 hosts",
        hosts=[8, 8],
        changes={"between": SLOWER["B200 hosts"]},
        rows=[
            Row(
                "all_reduce",
                1 * KIB,
                "37.54 38.87 39.96 41.72 42.31 43.57 44.27 64.46 65.66 77.88 93.41 104.94 "
                "111.68 136.2 190.47 249.24 346.14 597.27 927.12 1619.97 3016.62 5805.86 "
                "11382.9 22540.8",
            ),
            Row(
                "all_gather",
                1 * KIB,
                "34.44 34.36 35 35.93 36.25 37.08 39.75 42.31 75.85 75.86 77.59 128.43 "
                "139.74 149.62 202.24 247.08 491.04 622.04 1018.68 1717.36 3360.46 6591.25 "
                "13098.1 26185",
            ),
            Row(
                "reduce_scatter",
                1 * KIB,
                "34.78 35.53 35.96 36.06 36.49 37.9 39.77 42.08 79.74 80.88 82.63 129.6 "
                "140.51 151.06 202.84 247.72 490.4 618.72 1013.12 1705.43 3340.3 6585.55 "
                "13200.8 26154.2",
            ),
            Row(
                "all_to_all",
                1 * KIB,
                "37.6 37.68 37.77 37.27 37.86 40.42 39.63 43 49.31 57.19 78.39 101.12 "
                "158.09 267.63 445.46 819.17 1566.67 3050.41 6021.89",
            ),
        ],
    ),
    Published(
        name="72 GB200",
        source="github.com/coreweave/nccl-tests/pull/43",
        network="GB200 NVL72",
        hosts=[72],
        rows=[
            Row(
                "all_reduce",
                512 * MIB,
                "1806.7 3108.8 5589.1 10094 20299",
            ),
        ],
    ),
]
