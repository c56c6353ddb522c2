"""The machines and the environment of a program that is predicted."""

import pytest

from distlab.errors import ArgumentError
from distlab.scripts import options
from distlab.scripts.predicting import device_of, network_of, predict, variables_of
from distlab.simulated.devices import Device
from distlab.simulated.network import Network
from tests.refused import raised


def test_a_network_has_a_latency_and_a_bandwidth_or_a_name():
    assert network_of("5 us, 50 GB/s", 8) == Network("5 us", "50 GB/s")
    assert network_of("InfiniBand NDR", 8) == Network.named("InfiniBand NDR")
    error = str(raised(ArgumentError, network_of, "fast", 8))
    assert error.startswith(
        '--network must be a latency and a bandwidth, as in "5 us, 50 GB/s", or'
    )
    assert error.endswith("got 'fast'.")


def test_named_hosts_are_as_many_as_the_ranks_need():
    assert network_of("H100 hosts", 20).hosts == [8, 8, 4]
    assert network_of("GB200 NVL72", 144).hosts == [72, 72]


def test_ranks_are_numbered_machine_by_machine():
    """As by torchrun, with so many on each; a small world needs no whole machine."""
    variables = variables_of(rank=11, world_size=1024, on_host=8)
    assert (variables["LOCAL_RANK"], variables["LOCAL_WORLD_SIZE"]) == ("3", "8")
    assert (variables["GROUP_RANK"], variables["GROUP_WORLD_SIZE"]) == ("1", "128")
    assert variables_of(1, 2, 8)["LOCAL_WORLD_SIZE"] == "2"


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")


@pytest.mark.parametrize("wrong", [["--network", "fast"], ["--device", "quick"]])
def test_machines_that_cannot_be_read_end_the_command_with_status_2(script, capsys, wrong):
    chosen = options.read(["--predict", "8", *wrong, "train.py"])
    assert predict(chosen) == 2
    assert capsys.readouterr().err.startswith("distlab run: error: ")


def test_a_device_has_a_name_or_a_rate():
    assert device_of("H200") == Device.named("H200")
    assert device_of("10 TFLOP/s") == Device("10 TFLOP/s")
