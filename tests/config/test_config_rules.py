"""Each rule of a configuration with one case that passes and one that fails."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from xectool.config.document import Document
from xectool.config.load import CONFIG_RULES, config_from_dict
from xectool.config.root import KINDS, RunConfig
from xectool.config.translate import translate
from xectool.errors import ConfigError
from xectool.findings import Severity

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """What a rule must say about one change to a good configuration, and a change it must let pass."""

    rule: str
    code: str
    severity: Severity
    failing: Values
    tokens: tuple[str, ...]
    passing: Values
    kind: str = "regressor"


CASES = [
    Case("DroppedSensorsAreNotScored", "CFG-61", ERROR, {"training.channel_dropout_rate": 0.1},
         ("channel_dropout_rate", "model.mask_ratio"), {"training.channel_dropout_rate": 0.0}, kind="mae"),
    Case("EncoderSeesTheFaces", "CFG-44", WARNING, {"model.encoder_dim": 64},
         ("encoder_dim 64", "2 channels"), {"model.encoder_dim": 128}),
    Case("EncoderSeesTheFaces", "CFG-44", WARNING, {"model.encoder_dim": 64, "checkpoint.resume_from": "auto"},
         ("encoder_dim 64",), {"model.encoder_dim": 64, "checkpoint.init_from": "weights.pt"}),
    Case("GuardsAreOn", "CFG-63", WARNING, {"guards.disable": ["spike"]},
         ("off are G06", "spike"), {"guards.disable": []}),
    Case("GuardsAreOn", "CFG-63", ERROR, {"guards.memory_warning": 0.9, "guards.memory_stop": 0.5},
         ("memory_warning 0.9", "memory_stop 0.5"), {"guards.memory_warning": 0.5, "guards.memory_stop": 0.9}),
    Case("GuardsAreOn", "CFG-63", ERROR, {"guards.hang_abort_s": 10},
         ("hang_abort_s 10", "hang_s 120"), {"guards.hang_abort_s": 1200}),
    Case("GuardsAreOn", "CFG-63", ERROR, {"guards.on_spike": "rewind", "guards.disable": "G06"},
         ("rewind needs the guard",), {"guards.on_spike": "rewind"}),
    Case("LoaderOptionsNeedWorkers", "CFG-15", ERROR, {"data.prefetch_factor": 2},
         ("prefetch_factor needs num_workers > 0", "data.num_workers", "persistent_workers", "mp_context", "timeout_s"),
         {"data.prefetch_factor": 2, "data.num_workers": 1}),
    Case("LoaderOptionsNeedWorkers", "CFG-15", ERROR, {"data.persistent_workers": True},
         ("persistent_workers needs num_workers > 0",), {"data.persistent_workers": False}),
    Case("LoaderOptionsNeedWorkers", "CFG-15", ERROR, {"data.mp_context": "spawn"},
         ("mp_context needs num_workers > 0",), {"data.mp_context": "spawn", "data.num_workers": 2}),
    Case("LoaderOptionsNeedWorkers", "CFG-15", ERROR, {"data.timeout_s": 30},
         ("timeout_s needs num_workers > 0",), {"data.timeout_s": 600}),
    Case("ForkInheritsCompilerThreads", "CFG-19", WARNING,
         {"data.mp_context": "fork", "data.num_workers": 2, "training.compile": "default"},
         ("pthread_join failed", "forkserver", "training.compile"),
         {"data.mp_context": "fork", "data.num_workers": 2, "training.compile": "none"}),
    Case("WindowHoldsWholeBatches", "CFG-21", WARNING, {"data.chunksize": 100, "data.batch_size": 256},
         ("partial batches", "data.batch_size 256"), {"data.chunksize": 512, "data.batch_size": 256}),
    Case("WindowHoldsWholeBatches", "CFG-21", INFO, {"data.chunksize": 1000, "data.batch_size": 256},
         ("partial batches",), {"data.chunksize": 1024, "data.batch_size": 256}),
    Case("TrainingIsShuffled", "CFG-36", WARNING, {"data.shuffle": False}, ("data.shuffle",), {"data.shuffle": True}),
    Case("BranchIsCurrent", "CFG-39", WARNING, {"data.npho_branch": "relative_npho"}, ("deprecated; use npho",),
         {"data.npho_branch": "npho"}),
    Case("FiducialVolumeIsNotEmpty", "CFG-03", ERROR, {"data.fiducial.w_min": 5, "data.fiducial.w_max": 2},
         ("data.fiducial.w_max", "data.fiducial.w_min", "must be >"), {"data.fiducial.w_max": 2}),
    Case("NormalizationIsOfOneFamily", "CFG-40", WARNING, {"normalization.npho_scale": 0.58},
         ("normalisation incomplete", "normalization.npho_scale2 4.08"),
         {"normalization.npho_scale": 0.58, "normalization.npho_scale2": 1.0}),
    Case("NormalizationIsOfOneFamily", "CFG-40", WARNING, {"normalization.time_scale": 6.5e-8},
         ("normalisation incomplete", "normalization.time_shift"),
         {"normalization.npho_scheme": "sqrt", "normalization.npho_scale": 0.58}),
    Case("SentinelsStandApart", "CFG-41", WARNING, {"normalization.sentinel_npho": 0.5},
         ("inside the expected range",), {"normalization.sentinel_npho": -2}),
    Case("SentinelsStandApart", "CFG-41", WARNING, {"normalization.sentinel_time": 0.75},
         ("normalization.sentinel_time", "inside the expected range"), {"normalization.sentinel_time": -5}),
    Case("SentinelsStandApart", "CFG-41", WARNING, {"normalization.sentinel_time": -1.001},
         ("not bf16-representable",), {"normalization.sentinel_time": -1.5}),
    Case("OneNphoThreshold", "CFG-40", WARNING, {"training.time.npho_threshold": 50},
         ("normalization.npho_threshold 100", "training.time.npho_threshold 50"),
         {"training.time.npho_threshold": 100}, "mae"),
    # whatever is predicted, the normaliser's says which times are read
    *(Case("OneNphoThreshold", "CFG-40", WARNING, {"training.time.npho_threshold": value} | other,
           (f"training.time.npho_threshold {value}", "the older inpainter used only the latter"),
           {"training.time.npho_threshold": value, "normalization.npho_threshold": value}, "inpainter")
      for value, other in ((50, {}), (50, {"training.time.mask_ratio_scale": 2.0}),
                           (100, {"normalization.npho_threshold": 50}))),
    Case("MaskRatioIsUsual", "CFG-13", WARNING, {"model.mask_ratio": 0.9}, ("typical range", "0.5 to 0.75"),
         {"model.mask_ratio": 0.65}, "mae"),
    # fewer visible sensors than cells
    Case("MaskRatioIsUsual", "CFG-13", WARNING, {"model.mask_ratio": 0.998}, ("10 of 4760 sensors", "from 0.98 on"),
         {"model.mask_ratio": 0.75}, "mae"),
    Case("MaskRatioIsUsual", "CFG-13", WARNING, {"model.mask_ratio": {"inner": 0.05, "us": 0.4}},
         ("typical range", "0.4"), {"model.mask_ratio": {"inner": 0.05, "us": 0}}, "inpainter"),
    Case("TimeOptionsNeedTime", "CFG-14", WARNING, {"training.time.weight": 0.5},
         ("ignored: 'time' not in predict_channels", "training.time.weight"),
         {"training.time.weight": 0.5, "model.predict_channels": ["npho", "time"]}, "inpainter"),
    # bright sensors are hidden more often whatever is predicted
    Case("TimeOptionsNeedTime", "CFG-14", WARNING,
         {"training.time.npho_threshold": 50.0, "normalization.npho_threshold": 50.0},
         ("ignored: 'time' not in predict_channels", "training.time.npho_threshold"),
         {"training.time.npho_threshold": 50.0, "normalization.npho_threshold": 50.0,
          "training.time.mask_ratio_scale": 2.0}, "inpainter"),
    # one cause is told once: CFG-40 says what changes the training
    Case("TimeOptionsNeedTime", "CFG-14", WARNING, {"training.time.weight": 0.5},
         ("training.time.weight",), {"training.time.npho_threshold": 50.0}, "inpainter"),
    Case("PoolDividesTheFineGrid", "CFG-43", ERROR, {"model.outer_fine_pool": [2, 2]},
         ("model.outer_fine_pool", "45 x 72", "model.geometry"), {"model.outer_fine_pool": [5, 3]}),
    Case("PoolDividesTheFineGrid", "CFG-43", WARNING, {"model.outer_fine_pool": [2, 2], "model.geometry": "compat"},
         ("1 rows and 0 columns are dropped",), {"model.outer_fine_pool": [3, 3], "model.geometry": "compat"}),
    Case("PoolDividesTheFineGrid", "CFG-43", WARNING, {"model.outer_fine_pool": [3, 3], "model.outer_mode": "split"},
         ("no effect with model.outer_mode: split",), {"model.outer_mode": "split"}),
    Case("WidthsDivide", "CFG-44", ERROR, {"model.encoder_dim": 100}, ("model.encoder_dim 100", "multiple of 32"),
         {"model.encoder_dim": 96}),
    Case("WidthsDivide", "CFG-44", ERROR, {"model.cross_attn_pos_dim": 97, "model.head_type": "cross_attention"},
         ("model.cross_attn_pos_dim", "multiple of 6"), {"model.cross_attn_pos_dim": 97}, "inpainter"),
    Case("HeadOptionsApply", "CFG-60", WARNING,
         {"model.head_type": "cross_attention", "model.use_masked_attention": True},
         ("model.use_masked_attention", "model.head_type"), {"model.use_masked_attention": True}, "inpainter"),
    *(Case("HeadOptionsApply", "CFG-60", WARNING, {f"model.{name}": value, "model.head_type": "per_face"},
           (f"model.{name}: {value} has no effect", "model.head_type: per_face"),
           {f"model.{name}": value, "model.head_type": "cross_attention"}, "inpainter")
      for name, value in (("cross_attn_k", 8), ("cross_attn_hidden", 32), ("cross_attn_latent_dim", 64),
                          ("cross_attn_pos_dim", 48), ("sensor_positions_file", "a.txt"))),
    Case("FrozenEncoderIsTrained", "CFG-60", WARNING, {"model.freeze_encoder": True},
         ("model.freeze_encoder", "checkpoint.init_from"),
         {"model.freeze_encoder": True, "checkpoint.init_from": "mae.pt"}, "inpainter"),
    Case("LearnedChannelWeights", "CFG-60", WARNING,
         {"training.auto_channel_weight": True, "model.predict_channels": ["npho"]},
         ("training.auto_channel_weight", "model.predict_channels"), {"training.auto_channel_weight": True}, "mae"),
    Case("SomethingIsLearnt", "CFG-04", ERROR, {"tasks.energy.enabled": False},
         ("enable at least one of angle, energy, timing, uvwFI",), {"tasks.n_gamma.enabled": True}),
    Case("SomethingIsLearnt", "CFG-04", ERROR, {"tasks.energy.weight": 0},
         ("every enabled task has weight 0", "tasks.energy.weight"[:5]),
         {"tasks.energy.weight": 0, "loss_balance": "auto"}),
    Case("SomethingIsLearnt", "CFG-04", ERROR, {"training.npho_weight": 0, "training.time.weight": 0},
         ("training.npho_weight", "training.time.weight"), {"training.npho_weight": 0}, "mae"),
    Case("CosineNeedsAngles", "CFG-05", ERROR, {"tasks.energy.loss_fn": "cosine"}, ("tasks.energy.loss_fn", "angle"),
         {"tasks.angle.enabled": True, "tasks.angle.loss_fn": "cosine",
          "tasks.angleVec.enabled": True, "tasks.angleVec.loss_fn": "cosine"}),
    Case("BetaZeroIsL1", "CFG-07", WARNING, {"tasks.energy.loss_beta": 0}, ("beta 0 is plain L1",),
         {"tasks.energy.loss_beta": 0, "tasks.energy.loss_fn": "gaussian_nll"}),
    Case("BetaZeroIsL1", "CFG-07", WARNING, {"training.loss_beta": 0}, ("beta 0 is plain L1",),
         {"training.loss_beta": 0, "training.loss_fn": "mse"}, "mae"),
    Case("TargetsAreScaled", "CFG-09", WARNING, {"tasks.timing.enabled": True},
         ("targets of order 1e-9", "set tasks.timing.scale", "tasks.timing.scale: auto\ntasks.timing.shift: auto"),
         {"tasks.timing.enabled": True, "tasks.timing.scale": 1e-9}),
    Case("TargetsAreScaled", "CFG-09", WARNING, {"tasks.energy.scale": None}, ("set tasks.energy.scale",),
         {"tasks.energy.scale": None, "tasks.energy.log_transform": True}),
    *(Case("TargetsAreScaled", "CFG-09", WARNING, {f"tasks.{name}.enabled": True},
           (f"targets of order 10 {unit}", "thousands of steps", f"tasks.{name}.scale: auto\ntasks.{name}.shift: auto"),
           {f"tasks.{name}.enabled": True, **passing})
      for name, unit, passing in (("angle", "deg", {"tasks.angle.scale": 20.0}),
                                  ("uvwFI", "cm", {"tasks.uvwFI.scale": "auto"}),
                                  ("uvwFI", "cm", {"checkpoint.resume_from": "old.pth"}))),
    Case("TargetsAreScaled", "CFG-09", WARNING, {"tasks.n_gamma.enabled": True, "tasks.energy.scale": None},
         ("tasks.energy.scale",), {"tasks.n_gamma.enabled": True, "tasks.angleVec.enabled": True}),
    Case("LogarithmNeedsPositiveTargets", "CFG-10", ERROR,
         {"tasks.uvwFI.enabled": True, "tasks.uvwFI.log_transform": True},
         ("log_transform needs positive targets", "tasks.uvwFI.log_transform"), {"tasks.energy.log_transform": True}),
    Case("NllBetaIsAnExponent", "CFG-11", ERROR,
         {"tasks.energy.loss_fn": "gaussian_nll", "tasks.energy.loss_beta": 1.5},
         ("tasks.energy.loss_beta 1.5", "beta-NLL", "tasks.energy.loss_fn"),
         {"tasks.energy.loss_fn": "gaussian_nll", "tasks.energy.loss_beta": 1.0}),
    Case("ShiftFitsTheTarget", "CFG-03", ERROR, {"tasks.energy.shift": [0.0, 1.0]}, ("tasks.energy.shift has 2",),
         {"tasks.uvwFI.enabled": True, "tasks.uvwFI.shift": [0, 1, 2]}),
    Case("ReweightedTargetsAreLearnt", "CFG-60", WARNING, {"reweighting.angle.enabled": True},
         ("reweighting.angle.enabled", "tasks.angle.enabled"), {"reweighting.energy.enabled": True}),
    Case("BinsAreUsed", "CFG-60", WARNING, {"reweighting.energy.enabled": True, "reweighting.energy.nbins_2d": [5, 5]},
         ("reweighting.energy.nbins_2d has no effect", "reweighting.energy.nbins that counts"),
         {"reweighting.energy.enabled": True, "reweighting.energy.nbins": 5}),
    Case("BinsAreUsed", "CFG-60", WARNING, {"reweighting.angle.enabled": True, "reweighting.angle.nbins": 5},
         ("reweighting.angle.nbins_2d that counts",),
         {"reweighting.angle.enabled": True, "reweighting.angle.nbins_2d": [5, 5]}),
    Case("BinsAreUsed", "CFG-60", WARNING, {"reweighting.uvwFI.nbins_2d": [5, 5]},
         ("reweighting.uvwFI.enabled: false",), {"reweighting.uvwFI.nbins_2d": [20, 20]}),
    Case("BinsAreUsed", "CFG-60", WARNING, {"training.intensity_reweighting.target": "sqrt"},
         ("training.intensity_reweighting.target", "training.intensity_reweighting.enabled: false"),
         {"training.intensity_reweighting.target": "sqrt", "training.intensity_reweighting.enabled": True}, kind="mae"),
    Case("ClippingClips", "CFG-26", WARNING, {"training.grad_clip": 0}, ("0 disables clipping",),
         {"training.grad_clip": 0.1}),
    Case("ClippingClips", "CFG-26", WARNING, {"training.grad_clip": 1000}, ("above 100",),
         {"training.grad_clip": 100}),
    Case("WarmupEndsBeforeTraining", "CFG-27", ERROR, {"training.warmup_epochs": 20},
         ("T_max", "training.epochs 20", "training.warmup_epochs 20"),
         {"training.warmup_epochs": 20, "training.lr_scheduler": "onecycle"}),
    Case("OnecycleRises", "CFG-28", ERROR, {"training.lr_scheduler": "onecycle", "training.max_lr": 1e-5},
         ("training.max_lr", "training.lr 0.0003"), {"training.lr_scheduler": "onecycle", "training.max_lr": 1e-3}),
    Case("OnecycleRises", "CFG-28", WARNING, {"training.max_lr": 1e-2}, ("no effect", "training.lr_scheduler"),
         {"training.max_lr": None}),
    Case("LearningRateIsUsual", "CFG-29", WARNING, {"training.lr": 0.1}, ("1e-5 to 1e-3",), {"training.lr": 1e-3}),
    Case("LearningRateIsUsual", "CFG-29", ERROR, {"training.lr_scheduler": "cosine", "training.lr_min": 1e-3},
         ("training.lr_min", "training.lr 0.0003"), {"training.lr_min": 1e-3}),
    Case("GraphsNeedStaticShapes", "CFG-30", WARNING, {"training.compile": "reduce-overhead"},
         ("CUDA graphs need static shapes", "data.drop_last"),
         {"training.compile": "reduce-overhead", "data.drop_last": True}),
    Case("GraphsAndAccumulation", "CFG-31", WARNING,
         {"training.compile": "max-autotune", "training.grad_accum_steps": 2, "data.drop_last": True},
         ("overwritten by a subsequent run", "max-autotune-no-cudagraphs"),
         {"training.compile": "max-autotune-no-cudagraphs", "training.grad_accum_steps": 2}),
    Case("DeterminismAndAutotuning", "CFG-33", WARNING,
         {"training.deterministic": True, "training.compile": "max-autotune-no-cudagraphs"},
         ("training.deterministic", "training.compile"), {"training.deterministic": True}),
    Case("FullgraphNeedsCompile", "CFG-60", WARNING,
         {"training.compile_fullgraph": True, "training.compile": "none"},
         ("training.compile_fullgraph", "training.compile: none"), {"training.compile_fullgraph": True}),
    Case("IntervalsFitTheRun", "CFG-24", WARNING, {"checkpoint.save_interval": 50},
         ("save_interval does not change validation frequency", "training.epochs 20"),
         {"training.epochs": 5}),
    Case("IntervalsFitTheRun", "CFG-24", WARNING, {"validation.interval": 50}, ("validation.interval 50",),
         {"validation.interval": 20}),
    Case("IntervalsFitTheRun", "CFG-24", WARNING,
         {"checkpoint.root_save_interval": 3, "checkpoint.save_predictions": False},
         ("checkpoint.root_save_interval", "checkpoint.save_predictions"), {"checkpoint.root_save_interval": 3}, "mae"),
    Case("IntervalsFitTheRun", "CFG-24", WARNING, {"checkpoint.root_save_interval": 30},
         ("root_save_interval 30", "training.epochs 20"), {"checkpoint.root_save_interval": 20}, "mae"),
    Case("MaskPatternsCanBeFound", "CFG-62", ERROR, {"model.mask_patterns.origins": ["data"]},
         ("mask_patterns.files names none",),
         {"model.mask_patterns.origins": ["data"], "model.mask_patterns.files": "real/*.root"}, "inpainter"),
    Case("MaskPatternsCanBeFound", "CFG-62", ERROR, {"model.mask_patterns.origins": "branch:dead"},
         ("branch:dead looks at files",), {"model.mask_patterns.origins": "dead.txt"}, "mae"),
    Case("MaskPatternsCanBeFound", "CFG-62", ERROR, {"model.mask_patterns.origins": "sqlite:///c.db"},
         ("is asked for runs",),
         {"model.mask_patterns.origins": "sqlite:///c.db", "model.mask_patterns.runs": 430000}, "mae"),
    Case("MaskPatternsReplaceTheRatio", "CFG-60", WARNING,
         {"model.mask_patterns.origins": "dead.txt", "model.mask_ratio": 0.06},
         ("model.mask_ratio has no effect", "mask_patterns"), {"model.mask_ratio": 0.06}, "inpainter"),
    Case("MaskPatternsReplaceTheRatio", "CFG-60", WARNING,
         {"model.mask_patterns.sensors": [[1, 2]], "model.mask_npho_flat": True},
         ("model.mask_npho_flat has no effect",), {"model.mask_npho_flat": True}, "mae"),
    Case("MaskPatternsReplaceTheRatio", "CFG-60", WARNING,
         {"model.mask_npho_flat": True, "training.time.mask_ratio_scale": 2.0},
         ("mask_ratio_scale has no effect", "mask_npho_flat: true"), {"training.time.mask_ratio_scale": 2.0}, "mae"),
    Case("MaskPatternsReplaceTheRatio", "CFG-60", WARNING,
         {"model.mask_patterns.origins": "dead.txt", "model.mask_patterns.files": "a.root"},
         ("mask_patterns.files has no effect",), {"model.mask_patterns.origins": "dead.txt"}, "mae"),
    Case("MaskPatternsReplaceTheRatio", "CFG-60", WARNING,
         {"model.mask_patterns.origins": "dead.txt", "model.mask_patterns.runs": [3]},
         ("mask_patterns.runs has no effect",), {"model.mask_patterns.origins": "dead.txt"}, "mae"),
    Case("OneStartingPoint", "CFG-45", ERROR, {"checkpoint.resume_from": "a.pt", "checkpoint.init_from": "b.pt"},
         ("checkpoint.resume_from", "checkpoint.init_from"), {"checkpoint.init_from": "b.pt"}),
    Case("OneStartingPoint", "CFG-45", ERROR, {"checkpoint.resume_from": "model.onnx"}, ("ONNX",),
         {"checkpoint.resume_from": "model.pth"}),
    Case("OneStartingPoint", "CFG-45", ERROR, {"checkpoint.init_from": "model.onnx"}, ("the checkpoint that was",),
         {"checkpoint.init_from": "model.safetensors"}),
    Case("OneStartingPoint", "CFG-45", WARNING, {"checkpoint.refresh_lr": True},
         ("checkpoint.refresh_lr", "checkpoint.resume_from"),
         {"checkpoint.refresh_lr": True, "checkpoint.resume_from": "a.pt"}),
    Case("OptionsTakeEffect", "CFG-60", WARNING, {"export.onnx": "m.onnx"}, ("export.onnx has no effect", "ONNX"),
         {"export.onnx": None}),
    Case("CollectivesHaveTime", "CFG-50", WARNING, {"distributed.timeout_s": 30}, ("below 60 s",),
         {"distributed.timeout_s": 60}),
]  # fmt: skip

GOOD = {"regressor": {"tasks.energy.enabled": True, "tasks.energy.scale": "auto"}, "mae": {},
        "inpainter": {"model.freeze_encoder": False}}  # fmt: skip
RULES = {rule.name: rule for rule in CONFIG_RULES}


def build(kind: str, changes: Values) -> RunConfig:
    document = Document("test", {})
    for key, value in (GOOD[kind] | dict(changes)).items():
        document.put(tuple(key.split(".")), value, "test")
    return KINDS[kind].model_validate(document.values)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{'-'.join(case.failing)}")
def test_the_failing_case_is_found_with_its_tokens(case: Case) -> None:
    found = list(RULES[case.rule].check(build(case.kind, case.failing)))
    assert [(item.code, item.severity) for item in found] == [(case.code, case.severity)]
    text = f"{found[0].where} {found[0].problem} {found[0].fix}"
    assert [token for token in case.tokens if token not in text] == []
    assert found[0].fix


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{'-'.join(case.passing)}")
def test_the_passing_case_is_silent(case: Case) -> None:
    assert list(RULES[case.rule].check(build(case.kind, case.passing))) == []


def test_each_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(RULES)


def test_good_configurations_break_no_rule() -> None:
    for kind, changes in GOOD.items():
        config = build(kind, changes)
        assert [found for rule in CONFIG_RULES for found in rule.check(config)] == []


def test_every_rule_says_what_it_requires() -> None:
    for rule in CONFIG_RULES:
        assert re.fullmatch(r"CFG-\d\d", rule.code)
        assert rule.title


def test_the_key_of_a_finding_is_a_key_of_the_schema() -> None:
    from xectool.config.keys import keys_of

    for case in CASES:
        (found,) = RULES[case.rule].check(build(case.kind, case.failing))
        assert found.where in keys_of(case.kind)


@pytest.mark.parametrize("name", ["angle", "energy", "timing", "uvwFI"])
def test_a_scale_is_asked_for_with_the_shift_unless_there_is_one(name: str) -> None:
    """The fix set the scale alone, and what was pasted trained towards a mean far from 0."""
    task = {f"tasks.{name}.enabled": True, f"tasks.{name}.scale": None}
    (bare,) = RULES["TargetsAreScaled"].check(build("regressor", task))
    mended = {key: value for key, _, value in (line.partition(": ") for line in bare.fix.split("\n"))}
    assert mended == {f"tasks.{name}.scale": "auto", f"tasks.{name}.shift": "auto"}
    assert list(RULES["TargetsAreScaled"].check(build("regressor", task | mended))) == []
    (shifted,) = RULES["TargetsAreScaled"].check(build("regressor", task | {f"tasks.{name}.shift": 1.0}))
    assert shifted.fix == f"tasks.{name}.scale: auto"


def test_all_intervals_that_a_short_run_does_not_reach_are_one_warning() -> None:
    """`--set training.epochs=2` had a warning of CFG-24 for each of them; its fix is lines for a file, as of others."""
    long = {"checkpoint.save_interval": 50, "validation.interval": 30, "checkpoint.root_save_interval": 40}
    settings = {**long, "checkpoint.save_predictions": True}
    (found,) = RULES["IntervalsFitTheRun"].check(build("mae", settings))
    assert [key for key, value in long.items() if f"{key} {value}" not in found.problem] == []
    mended = {key: int(value) for key, _, value in (line.partition(": ") for line in found.fix.split("\n"))}
    assert mended.keys() == long.keys()
    assert list(RULES["IntervalsFitTheRun"].check(build("mae", settings | mended))) == []


@pytest.mark.parametrize(("epochs", "warmup"), [(1, 0), ("2", 0), (3, 2), (20, 2)])
def test_a_run_that_is_made_short_has_no_warm_up_that_nobody_asked_for(epochs: Any, warmup: int) -> None:
    """``--set training.epochs=2`` alone was an error by default."""
    content = {"kind": "regressor", "tasks": {"energy": {"enabled": True}}}
    resolved = config_from_dict({**content, "training": {"epochs": epochs}}, "test").training
    assert resolved.warmup_epochs == warmup
    told = config_from_dict({**content, "training": {"warmup_epochs": "auto", "epochs": epochs}}, "test").training
    assert told == resolved
    assert config_from_dict({**content, "training": resolved.model_dump()}, "test").training == resolved
    with pytest.raises(ConfigError, match="leaves the schedule no epoch"):
        config_from_dict({**content, "training": {"epochs": 2, "warmup_epochs": 2}}, "test")


def test_dropping_validation_events_is_refused() -> None:
    document = Document("run.yaml", {"validation": {"drop_last": True}})
    (found,) = translate(document, "regressor")
    assert (found.code, found.severity) == ("CFG-34", ERROR)
    assert "drops events" in found.problem


def test_keeping_validation_events_is_only_noted() -> None:
    document = Document("run.yaml", {"validation": {"drop_last": False}})
    (found,) = translate(document, "regressor")
    assert found.severity is INFO
    assert document.values == {"validation": {}}


def test_a_broken_rule_is_one_config_error() -> None:
    with pytest.raises(ConfigError, match="T_max"):
        config_from_dict({"kind": "mae", "training": {"warmup_epochs": 30}}, "here")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{'-'.join(case.failing)}")
def test_the_fix_is_a_line_that_ends_the_finding(case: Case) -> None:
    (found,) = RULES[case.rule].check(build(case.kind, case.failing))
    changes = dict(case.failing)
    if found.fix.startswith("delete "):
        del changes[found.fix.removeprefix("delete ")]
    else:
        changes |= yaml.safe_load(found.fix)
    assert list(RULES[case.rule].check(build(case.kind, changes))) == []


@pytest.mark.parametrize(("ratio", "few"), [(0.979, False), (0.981, True)])
def test_the_cells_of_the_encoder_bound_the_mask_ratio(ratio: float, few: bool) -> None:
    (found,) = RULES["MaskRatioIsUsual"].check(build("mae", {"model.mask_ratio": ratio}))
    assert ("stay visible" in found.problem) == few
