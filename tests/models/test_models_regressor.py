"""The regressor as a whole: outputs, freezing, compile, autocast, checkpointing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from xectool.config.root import MaeConfig
from xectool.config.tasks import TaskConfig
from xectool.errors import ConfigError, UsageError
from xectool.models import MODELS, Regressor, build_model

Build = Callable[..., Regressor]
Events = tuple[Tensor, Tensor]
MODES: list[dict[str, Any]] = [
    {"outer_fine_pool": [3, 3]},
    {"outer_mode": "split"},
    {"geometry": "compat", "outer_fine_pool": [5, 3]},
]


def _loss(model: Regressor, events: Events) -> Tensor:
    return torch.stack([output.square().mean() for output in model(*events).values()]).sum()


def _gradients(model: Regressor, events: Events) -> dict[str, Tensor]:
    model.zero_grad()
    torch.manual_seed(5)
    _loss(model, events).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("mode", MODES)
def test_outputs_have_the_width_of_their_task(mode: dict[str, Any], build_regressor: Build, events: Events) -> None:
    model = build_regressor(("uvwFI", "energy"), ("energy",), **mode)
    shapes = {name: tuple(output.shape) for name, output in model(*events).items()}
    assert shapes == {"energy": (3, 2), "uvwFI": (3, 3)}
    assert model.tokens(*events).shape == (3, model.backbone.num_tokens, 128)
    assert (model.active_tasks, model.nll_tasks) == (("energy", "uvwFI"), ("energy",))


def test_only_heads_in_use_are_trained(build_regressor: Build, events: Events) -> None:
    model = build_regressor(("energy",)).train()
    _loss(model, events).backward()
    idle = {name for name, p in model.named_parameters() if p.grad is None}
    assert idle == {name for name, p in model.named_parameters() if not p.requires_grad}
    assert {name.split(".")[1] for name in idle} == {"angle", "timing", "uvwFI", "angleVec", "n_gamma"}


def test_predictions_are_physical_and_carry_a_sigma(build_regressor: Build, events: Events) -> None:
    template = build_regressor(("energy",), ("energy",))
    assert template.num_parameters(trainable_only=True) < template.num_parameters()
    torch.manual_seed(0)
    model = build_regressor(("energy",), ("energy",))
    model.target_transforms["energy"].scale.fill_(0.01)
    model.target_transforms["energy"].shift.fill_(0.05)
    raw, physical = model(*events)["energy"], model.predict(*events)
    torch.testing.assert_close(physical["energy"], raw[:, :1] * 0.01 + 0.05)
    torch.testing.assert_close(physical["sigma_energy"], (raw[:, 1:] / 2).exp() * 0.01)


@pytest.mark.parametrize("mode", MODES)
def test_it_compiles_as_one_graph(mode: dict[str, Any], build_regressor: Build, events: Events) -> None:
    model = build_regressor(**mode)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(*events), model(*events))


def test_its_training_graph_compiles_too_with_hidden_sensors(build_regressor: Build, events: Events) -> None:
    encoder = build_regressor().backbone.train()
    x = torch.rand(2, 4760, 2)
    compiled = torch.compile(encoder, fullgraph=True, backend="eager")
    mask = torch.rand(2, 4760) < 0.4
    torch.manual_seed(1)
    expected = encoder(x, mask)
    torch.manual_seed(1)
    tokens = compiled(x, mask)
    torch.testing.assert_close(tokens, expected)
    tokens.sum().backward()


def test_it_exports_for_inference(build_regressor: Build, events: Events) -> None:
    model = build_regressor(outer_fine_pool=[3, 3])
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, events, dynamic_shapes=({0: batch}, {0: batch}), strict=False)
    more = tuple(torch.cat([values, values]) for values in events)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(*more), model(*more))


@pytest.mark.parametrize("mode", MODES)
def test_bfloat16_autocast_trains(mode: dict[str, Any], build_regressor: Build, events: Events, device: str) -> None:
    model = build_regressor(**mode).to(device)
    events = (events[0].to(device), events[1].to(device))
    exact = _loss(model, events)
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        rounded = _loss(model, events)
    rounded.backward()
    torch.testing.assert_close(rounded.float(), exact, rtol=0.1, atol=0.02)
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_checkpointed_activations_give_the_same_gradients(build_regressor: Build, events: Events) -> None:
    torch.manual_seed(0)
    plain = build_regressor(drop_path_rate=0.3).train()
    recomputed = build_regressor(drop_path_rate=0.3, checkpointing="stages").train()
    recomputed.load_state_dict(plain.state_dict())
    expected = _gradients(plain, events)
    for name, gradient in _gradients(recomputed, events).items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=0)


def test_gradients_repeat_to_the_bit(build_regressor: Build, events: Events) -> None:
    model = build_regressor(outer_fine_pool=[3, 3]).train()
    first, second = _gradients(model, events), _gradients(model, events)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_event_does_not_depend_on_its_batch(build_regressor: Build, events: Events) -> None:
    model = build_regressor(outer_fine_pool=[5, 3])
    with torch.no_grad():
        together, alone = model(*events), model(events[0][1:2], events[1][1:2])
        empty = model(events[0][:0], events[1][:0])
    for name, output in alone.items():
        torch.testing.assert_close(output, together[name][1:2], rtol=1e-5, atol=1e-6)
        assert empty[name].shape[0] == 0


def test_weights_of_another_geometry_are_refused(build_regressor: Build) -> None:
    compat, physical = build_regressor(geometry="compat"), build_regressor()
    with pytest.raises(RuntimeError, match=r"is of another model\.geometry than 'physical'"):
        physical.load_state_dict(compat.state_dict())


def test_an_unknown_task_names_the_nearest(build_regressor: Build) -> None:
    model = build_regressor()
    with pytest.raises(ConfigError, match="did you mean 'energy'"):
        Regressor(_section(model), _normalization(), {"enrgy": TaskConfig()})


def test_a_kind_without_a_network_is_refused() -> None:
    assert "regressor" in MODELS.names()
    if "mae" not in MODELS.names():
        with pytest.raises(UsageError, match="choose one of"):
            build_model(MaeConfig())


def _section(model: Regressor) -> Any:
    from xectool.config.model import RegressorModelConfig

    return RegressorModelConfig(encoder_dim=model.backbone.width)


def _normalization() -> Any:
    from xectool.config.normalization import NormalizationConfig

    return NormalizationConfig()
