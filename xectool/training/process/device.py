"""Where and in which precision a run computes, and why."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import torch

from xectool.config.cgroups import allowed_cpus, num_cores, usable_cores
from xectool.config.platform import COMPILE_THREADS, compile_threads
from xectool.config.training import TrainingConfig
from xectool.errors import DeviceError, counted
from xectool.errors.compiler_place import no_compiler_place

COMPILERS = ("torch._dynamo", "torch._inductor", "triton")
PAYS_AFTER: Final = 1000  # batches, on an H200 (docs/benchmarks.md); compiling takes about a minute there
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # which PyTorch reads, with MKL or without
_NO_PLACE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR}


@dataclass(frozen=True)
class Execution:
    """How tensors are computed.

    Attributes:
        device: The device of model and batches.
        autocast_dtype: Reduced precision of the forward pass, or None for float32.
        use_scaler: Whether gradients are scaled (float16 only; bfloat16 has the range of float32).
        compile_mode: Mode for ``torch.compile``, or None for eager.
        notes: What was chosen and why, one sentence each.
        compile_by_auto: Whether it was not asked for, so that a short run may do without.
    """

    device: torch.device
    autocast_dtype: torch.dtype | None
    use_scaler: bool
    compile_mode: str | None
    notes: tuple[str, ...] = ()
    compile_by_auto: bool = False

    def autocast(self) -> torch.autocast:
        """Return the autocast context of the forward pass on the real device type."""
        return torch.autocast(
            self.device.type,
            dtype=self.autocast_dtype or torch.bfloat16,
            enabled=self.autocast_dtype is not None,
        )


def plan_execution(training: TrainingConfig, device: str | None = None) -> Execution:
    """Choose device, precision and compile mode for a configuration on this machine, and keep to its cores.

    This sets the threads of the process and of the compiler, unless the environment names their number.

    Raises:
        DeviceError: A device is asked for that this machine or this build of PyTorch does not have.
    """
    chosen = resolve_device(device or training.device)
    dtype, precision_note = _precision(training.amp, chosen)
    mode, compile_note = _compile_mode(training.compile, chosen)
    threads, thread_note = _quota_threads()
    if threads is not None:
        take_threads(threads)
    if mode is not None:
        os.environ.setdefault(COMPILE_THREADS, str(compile_threads()))
    return Execution(
        device=chosen,
        autocast_dtype=dtype,
        use_scaler=dtype is torch.float16,
        compile_mode=mode,
        notes=(f"device {chosen}", precision_note, compile_note, *thread_note),
        compile_by_auto=training.compile == "auto" and mode is not None,
    )


def compiled_where_it_pays(execution: Execution, batches: int, ranks: int = 1) -> Execution:
    """Return how a run is computed: eagerly where ``auto`` would compile for too few batches.

    Args:
        execution: As the machine allows.
        batches: Of all epochs and ranks, wherever the run is stopped: what is resumed goes on as it began, unless it is
            given more epochs.
        ranks: Number of ranks that share them.
    """
    own = batches // ranks
    if not execution.compile_by_auto or own >= PAYS_AFTER:
        return execution
    eager = f"eager (training.compile: auto; {own} batches, and compiling pays after about {PAYS_AFTER})"
    notes = tuple(eager if note.startswith("compiled") else note for note in execution.notes)
    return replace(execution, compile_mode=None, notes=notes, compile_by_auto=False)


def _quota_threads() -> tuple[int | None, tuple[str, ...]]:
    """Return how many threads the cores are that a quota leaves, and why; None where there is none or the user chose.

    PyTorch takes all CPUs it may run on: 64 threads of two cores' time stop each other at every product.
    """
    cores, cpus = num_cores(), allowed_cpus()
    if cores == cpus or any(name in os.environ for name in _THREADS):
        return None, ()
    return cores, (f"at most {counted(cores, 'thread')}: the control group allows {usable_cores():.3g} of {cpus} CPUs",)


def take_threads(most: int) -> None:
    """Let this process compute in so many threads at most; fewer that were set stay."""
    if torch.get_num_threads() > most:
        torch.set_num_threads(most)


def resolve_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is the first CUDA device where there is one, else the CPU.

    Raises:
        DeviceError: The device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    device = named_device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device '{name}' is not here: {torch.cuda.device_count()} CUDA devices, PyTorch {torch.__version__}",
            where="training.device or --device",
            fix="--device cpu",
            code="XT-DEVICE",
        )
    return device


def named_device(name: str) -> torch.device:
    """Return the device of a name that is not ``auto``, whether it is here or not.

    Raises:
        DeviceError: No device that we compute on has this name.
    """
    where, fix = "training.device or --device", "--device auto   # a GPU where there is one; or cpu, cuda, cuda:N"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"unknown device '{name}'", where=where, fix=fix, code="XT-DEVICE") from error
    if device.type not in {"cpu", "cuda"}:
        raise DeviceError(f"device type '{device.type}' is not supported", where=where, fix=fix, code="XT-DEVICE")
    return device


def _precision(amp: str, device: torch.device) -> tuple[torch.dtype | None, str]:
    if amp == "off":
        return None, "float32 (training.amp: off)"
    if amp == "fp16":
        return torch.float16, "float16 autocast with gradient scaling"
    if amp == "bf16":
        if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise DeviceError(
                f"{torch.cuda.get_device_name(device)} has no bfloat16 arithmetic",
                where="training.amp: bf16",
                fix="training.amp: fp16",
                code="CFG-32",
            )
        return torch.bfloat16, "bfloat16 autocast"
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16, "bfloat16 autocast (training.amp: auto on a GPU that has it)"
    return None, f"float32 (training.amp: auto on {device.type})"


def _compile_mode(mode: str, device: torch.device) -> tuple[str | None, str]:
    if mode == "none":
        return None, "eager (training.compile: none)"
    missing = missing_toolchain(device)
    if mode == "auto":
        if device.type == "cpu":
            return None, "eager (training.compile: auto on the CPU, where compiled steps were measured slower)"
        if missing:
            return None, f"eager (training.compile: auto, and {missing})"
        return "default", "compiled (training.compile: auto)"
    if missing:
        raise DeviceError(
            f"training.compile: {mode} cannot work here: {missing}",
            where="training.compile",
            fix="training.compile: none",
            code="XT-COMPILE-TOOLCHAIN",
        )
    return mode, f"compiled (training.compile: {mode})"


def missing_toolchain(device: torch.device) -> str:
    """Return what ``torch.compile`` needs and does not find on this machine, or an empty string."""
    if device.type == "cuda":
        return "" if importlib.util.find_spec("triton") else "no working triton installation is found"
    compiler = cxx_compiler()
    return "" if shutil.which(compiler) else f"no working C++ compiler is found ({compiler})"


def cxx_compiler() -> str:
    """Return the C++ compiler ``torch.compile`` takes: that of ``CXX``, else the usual one; it looks for no other."""
    return os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")


def keep_counts_in_graph() -> None:
    """Let the compiler trace sizes that depend on the data: how many sensors are hidden would break the graph else."""
    torch._dynamo.config.capture_dynamic_output_shape_ops = True


@contextmanager
def compile_faults(execution: Execution) -> Iterator[None]:
    """Raise an error of ours in place of what ``torch.compile`` raises when the model cannot be compiled.

    Raises:
        DeviceError: Compilation failed inside the block.
        DiskError: The compiler has no place for its files.
    """
    try:
        yield
    except RuntimeError as error:
        if execution.compile_mode is None or not type(error).__module__.startswith(COMPILERS):
            raise
        refused = _refused_file(error)
        if refused is not None:
            raise no_compiler_place(refused) from error
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise DeviceError(
            f"the model could not be compiled: {reason}",
            where=f"training.compile: {execution.compile_mode}",
            fix="training.compile: none",
            code="XT-COMPILE-FAILED",
        ) from error


def _refused_file(error: BaseException | None) -> OSError | None:
    """Return what the system refused the compiler, None where it did not fail of that."""
    while error is not None and not (isinstance(error, OSError) and error.errno in _NO_PLACE):
        error = error.__cause__ or error.__context__
    return error


def apply_determinism(deterministic: bool) -> None:
    """Switch PyTorch to reproducible kernels, or leave its defaults.

    Note: ``CUBLAS_WORKSPACE_CONFIG`` only counts before the first CUDA call of the process.
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(deterministic)


def numerics(device: torch.device) -> dict[str, str | int | bool | None]:
    """Return the settings of PyTorch that change the numbers of a step, and what computes it."""
    cudnn, on_gpu = torch.backends.cudnn, device.type == "cuda"
    # asking for the version loads the library
    version = str(cudnn.version()) if on_gpu else None  # type: ignore[no-untyped-call]
    return {
        "device_name": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "cuda": torch.version.cuda if on_gpu else None,
        "cudnn": version,
        "cudnn_enabled": cudnn.enabled,
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_deterministic": cudnn.deterministic,
        "cudnn_tf32": cudnn.allow_tf32,
        "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }
