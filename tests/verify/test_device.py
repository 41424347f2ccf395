"""Opening a device: what is missing is said, nothing is guessed."""

from __future__ import annotations

import sys

import pytest

from decodecalc.errors import InputError, MissingDependencyError
from decodecalc.verify.run import device as module
from decodecalc.verify.run.device import Device, DeviceState, open_device, parse_state


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="torch and triton"):
        open_device("cuda")


@pytest.mark.interpreter
def test_without_a_gpu_cuda_is_missing(monkeypatch):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(MissingDependencyError, match="sees none"):
        open_device("cuda")


@pytest.mark.interpreter
def test_the_interpreter_must_be_chosen_before_triton_is_loaded(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "triton", object())
    with pytest.raises(InputError, match="TRITON_INTERPRET=1"):
        open_device("interpreter")


@pytest.mark.interpreter
def test_the_gpu_is_refused_while_triton_interprets(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(InputError, match="unset it"):
        open_device("cuda")


def test_clocks_are_read_in_hertz_and_what_is_not_said_is_none():
    assert parse_state("1980, 3201, [N/A], 41, 580.1") == DeviceState(1.98e9, 3.201e9, None, 41.0, "580.1")
    assert parse_state("") == DeviceState()
    assert parse_state("No devices were found") == DeviceState()


def test_a_machine_without_nvidia_smi_has_no_state(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(module.subprocess, "run", missing)
    assert Device("cuda", "cuda:0", "x").state() == DeviceState()
