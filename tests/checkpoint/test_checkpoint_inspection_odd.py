"""Sound files of odd makers: nothing false is found in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from xectool import engine
from xectool.errors import CheckpointError
from xectool.findings import Severity


def _stepped(parameters: Any, kind: Any = torch.optim.Adam, **options: Any) -> Any:
    kept = list(parameters)
    optimizer = kind(kept, **options)
    torch.manual_seed(8)
    for parameter in kept:
        parameter.grad = torch.randn_like(parameter)

    def closure() -> Tensor:
        return sum((parameter**2).sum() for parameter in kept)

    optimizer.step(closure)
    return optimizer.state_dict()


def _network() -> nn.Linear:
    torch.manual_seed(2)
    return nn.Linear(6, 9)


NET, OTHER = _network(), nn.Linear(9, 3)
LOSS = nn.Parameter(torch.zeros(7))
QUANTISED = {
    "state": {0: {"step": 3, "state1": torch.zeros(9, 6).byte(), "qmap1": torch.rand(256), "absmax1": torch.rand(2)}},
    "param_groups": [{"params": [0, 1]}],
}
FACTORED = {
    "state": {0: {"step": 3, "exp_avg_sq_row": torch.rand(9), "exp_avg_sq_col": torch.rand(6), "RMS": 0.1}},
    "param_groups": [{"params": [0, 1]}],
}


def _with(optimizer: Any, **more: Any) -> dict[str, Any]:
    return {"state_dict": NET.state_dict(), "optimizer": optimizer, "epoch": 2, **more}


def _buffers() -> dict[str, Tensor]:
    infinity = torch.inf
    return {
        "fc.weight": torch.rand(4, 4), "causal": torch.full((9, 9), -infinity).triu(1),
        "edges": torch.tensor([-infinity, 0.0, 1.0, 5.0, infinity]), "best": torch.tensor(infinity),
        "observer.min_val": torch.tensor(infinity), "observer.max_val": torch.tensor(-infinity),
        "limits": torch.cat([torch.arange(9.0), torch.tensor([infinity])]),
    }  # fmt: skip


SOUND: dict[str, Any] = {
    "factored moments": _with(_stepped(NET.parameters(), torch.optim.Adafactor)),
    "factored moments of another library": _with(FACTORED),
    "moments in eight bits": _with(QUANTISED),
    "one flat state": _with(_stepped(NET.parameters(), torch.optim.LBFGS)),
    "two optimizers": _with([_stepped(NET.parameters()), _stepped(OTHER.parameters())], second=OTHER.state_dict()),
    "optimizers by name": _with({"adam": _stepped(NET.parameters())}),
    "name of an optimizer": _with("adam", scheduler="cosine"),
    "weights of a loss": _with(_stepped([*NET.parameters(), LOSS]), criterion={"log_vars": LOSS.detach()}),
    "weights of a loss that are not kept": _with(_stepped([*NET.parameters(), LOSS])),
    "infinities that belong there": _buffers(),
    "weights by part": {"model": {"one": NET.state_dict(), "two": OTHER.state_dict()}},
    "a list": [torch.rand(3, 3), torch.rand(2)],
}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_wrong_with_it(name: str, tmp_path: Path) -> None:
    torch.save(SOUND[name], tmp_path / "a.pt")
    result = engine.inspect_ckpt(tmp_path / "a.pt")
    assert [item for item in result.findings if item.severity is not Severity.INFO] == []
    assert result.parameters


SPIKE = torch.zeros(30, 30)
SPIKE[5, 5] = torch.inf
WRONG: dict[str, tuple[Any, str]] = {
    "optimizer of another network": (_with(_stepped(OTHER.parameters())), "no weight has the shape"),
    "infinite weight": ({"a.weight": torch.tensor([[0.1, 0.2], [torch.inf, 0.3]])}, "not finite"),
    "infinite bias": ({"a.bias": torch.tensor([0.1, 0.2, torch.inf])}, "not finite"),
    "one infinity among zeros": ({"a.table": SPIKE}, "not finite"),
    "nothing but huge weights": ({"a.weight": torch.full((8, 8), 1e20)}, "a.weight reach 1e+20: damaged"),
    "NaN where a bound may be infinite": ({"a.min_val": torch.tensor(torch.nan)}, "not finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_control_that_is_wrong_is_found(name: str, tmp_path: Path) -> None:
    content, words = WRONG[name]
    torch.save(content, tmp_path / "a.pt")
    result = engine.inspect_ckpt(tmp_path / "a.pt")
    assert result.is_bad
    assert words in result.findings[0].problem or words in result.verdict


def _of_header_length(length: int) -> bytes:
    """A file whose header has exactly this many bytes; 640 are the first bytes of a pickle."""
    body = torch.arange(6.0).numpy().tobytes()
    header = json.dumps({"a": {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]}}).encode()
    return length.to_bytes(8, "little") + header.ljust(length) + body


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580, 0x0288])
def test_a_header_as_long_as_a_magic_number_is_safetensors(length: int, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(_of_header_length(length))
    assert safetensors.torch.load_file(tmp_path / "a.safetensors")["a"].shape == (6,)
    assert engine.inspect_ckpt(tmp_path / "a.safetensors").container == "safetensors"


STRANGERS = {
    "page behind a byte order mark": (b"\xef\xbb\xbf\n<!DOCTYPE html><html>", "an HTML page"),
    "settings": (b"[core]\nbare = false\n", "a text file"),
    "numbers in brackets": (b"[1, 2]", "a JSON file"),
    "UTF-16": ("hello".encode("utf-16"), "UTF-16"),
    "joblib, packed": (b"\x78\x9c" + bytes(range(90)), "joblib"),
    "length beyond all files": ((1 << 60).to_bytes(8, "little") + b'{"a":{}}', "its header claims 1152921504606846976"),
    "TensorFlow Lite": (b"\x1c\0\0\0TFL3" + bytes(range(99)), "TensorFlow Lite"),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_is_named(name: str, tmp_path: Path) -> None:
    content, words = STRANGERS[name]
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        engine.inspect_ckpt(tmp_path / "a.pt")
    assert words in caught.value.problem


def test_a_joblib_file_is_named_and_one_that_runs_code_is_dangerous(tmp_path: Path) -> None:
    name = b"cjoblib.numpy_pickle\nNumpyArrayWrapper\n"
    (tmp_path / "a.pkl").write_bytes(b"\x80\x02" + name + b")\x81.")
    with pytest.raises(CheckpointError) as caught:
        engine.inspect_ckpt(tmp_path / "a.pkl")
    assert "a joblib file" in caught.value.problem
    (tmp_path / "b.pkl").write_bytes(b"\x80\x02" + name + b"0cos\nsystem\n.")
    assert engine.inspect_ckpt(tmp_path / "b.pkl").verdict.startswith("dangerous")
