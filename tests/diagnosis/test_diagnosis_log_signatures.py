# ruff: noqa: E501  the lines of logs are quoted as they are
"""Every signature is seen with other numbers, paths and processes, and not in lines that only resemble it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from xectool.diagnosis.signatures import LogCause, rank_causes, scan_file
from xectool.diagnosis.signatures.known_ranks import SIGNATURES, found_in
from xectool.explanations import library

Diagnose = Callable[..., tuple[LogCause, ...]]

SEEN = [
    ("XT-OOM-GPU", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB"),
    ("XT-OOM-GPU", "RuntimeError: CUDA out of memory. Tried to allocate 734.00 MiB (GPU 3; 15.78 GiB total capacity; 14 GiB already allocated)"),
    ("XT-OOM-GPU", "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 1.12 GiB"),
    ("XT-OOM-GPU", "RuntimeError: CUDA error: out of memory"),
    ("XT-OOM-GPU", "RuntimeError: CUDA out of memory"),
    ("XT-OOM-HOST", "slurmstepd: error: Detected 1 oom_kill event in StepId=8123.0. Some of the step tasks have been OOM Killed."),
    ("XT-OOM-HOST", "slurmstepd: error: Detected 3 oom-kill event(s) in step 4711.batch cgroup."),
    ("XT-OOM-HOST", "[12345.678] Out of memory: Killed process 3456 (python) total-vm:99999kB"),
    ("XT-OOM-HOST", "[1234567.1] Memory cgroup out of memory: Killed process 22118 (python3) total-vm:88123012kB, anon-rss:63991220kB"),
    ("XT-OOM-HOST", "Nov 20 04:55:30 gn016 kernel: pt_data_worker invoked oom-killer: gfp_mask=0x100cca(GFP_HIGHUSER_MOVABLE), order=0"),
    ("XT-OOM-HOST", "job exited with code 137"),
    ("XT-OOM-HOST", "container exit code 137"),
    ("XT-OOM-HOST", "MemoryError"),
    ("XT-OOM-HOST", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9.98 GiB for an array with shape (262144, 4760, 2)"),
    ("XT-OOM-HOST", "RuntimeError: DataLoader worker (pid 812) is killed by signal: Killed. "),
    ("XT-OOM-HOST", "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ("XT-OOM-HOST", "run.sh: line 12: 33211 Killed                  python train.py"),
    ("XT-OOM-GPU", "RuntimeError: HIP error: out of memory"),
    ("XT-OOM-GPU", "Cuda failure 2 'out of memory'"),
    ("XT-OOM-HOST", "srun: error: node07: task 2: Out Of Memory"),
    ("XT-OOM-HOST", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit."),
    ("XT-OOM-HOST", "=>> PBS: job killed: mem 33554432kb exceeded limit 16777216kb"),
    ("XT-SHM", "srun: error: node01: task 0: Bus error (core dumped)"),
    ("XT-NAN-GRAD", "RuntimeError: Function 'PowBackward0' returned nan values in its 0th output."),
    ("XT-AMP-OVERFLOW", "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."),
    ("XT-AMP-OVERFLOW", "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding."),
    ("XT-NAN-WEIGHTS", "ValueError: Detected nan and/or inf values in `net.0.weight`. Check your forward pass for numerically unstable operations."),
    ("XT-NAN", "ValueError: The loss returned in `training_step` is nan."),
    ("XT-NAN", "FloatingPointError: Loss became infinite or NaN at iteration=1520!"),
    ("XT-NAN", "RuntimeError: NaN gradients found in 3 parameters"),
    ("XT-COLLECTIVE-TIMEOUT", "torch.distributed.DistBackendError: [Rank 0] NCCL watchdog thread terminated with exception"),
    ("XT-RANK-MISSING", "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."),
    ("XT-PEER-LOST", "torch.distributed.DistBackendError: NCCL error in: x.cpp:1970, remote process exited or there was a network error, NCCL version 2.20.5"),
    ("XT-DEVICE", "Memory access fault by GPU node-4 (Agent handle: 0x5566) on address 0x7f3a. Reason: Page not present."),
    ("XT-DEVICE", "RuntimeError: HIP error: invalid device function"),
    ("XT-DEVICE", "RuntimeError: CUDA error: unspecified launch failure"),
    ("XT-DEVICE", "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, unhandled cuda error (run with NCCL_DEBUG=INFO for details)"),
    ("XT-PEER-LOST", "RuntimeError: Rank 0 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 1"),
    ("XT-TIME-LIMIT", "=>> PBS: job killed: walltime 3601 exceeded limit 3600"),
    ("XT-SHM", "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit."),
    ("XT-WORKER-SEGV", "RuntimeError: DataLoader worker (pid 9) is killed by signal: Segmentation fault. "),
    ("XT-WORKER-SEGV", "ERROR: Unexpected segmentation fault encountered in worker."),
    ("XT-WORKER-DEAD", "RuntimeError: DataLoader worker (pid(s) 41, 42) exited unexpectedly"),
    ("XT-LOADER-STALL", "RuntimeError: DataLoader timed out after 600 seconds"),
    ("XT-WORKER-ERROR", "ValueError: Caught ValueError in DataLoader worker process 11."),
    ("XT-CFG-WORKERS", "ValueError: prefetch_factor option could only be specified in multiprocessing.let num_workers > 0"),
    ("XT-CFG-WORKERS", "ValueError: persistent_workers option needs num_workers > 0"),
    ("XT-CFG-WORKERS", "ValueError: multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got 0"),
    ("XT-CFG-WORKERS", "AssertionError: _SingleProcessDataLoaderIter requires timeout == 0"),
    ("CFG-35", "ValueError: batch_size=None option disables auto-batching and is mutually exclusive with drop_last"),
    ("XT-LOADER-SHUFFLE", "ValueError: DataLoader with IterableDataset: expected unspecified sampler option, but got sampler=<x>"),
    ("XT-LOADER-SHUFFLE", "TypeError: object of type 'MyStream' has no len()"),
    ("XT-DB-LOCKED", "mlflow.exceptions.MlflowException: (sqlite3.OperationalError) database is locked"),
    ("XT-MIOPEN-LOCKED", "MIOpen(HIP): Error [Prepare] SQL error: database is locked"),
    ("XT-MIOPEN-LOCKED", "sqlite: database is locked while opening /tmp/miopen_cache_1/gfx90a.udb of MIOpen"),
    ("XT-TRACKER-PARAMS", "mlflow.exceptions.MlflowException: Changing param values is not allowed. Param with key='lr' was already logged"),
    ("XT-COMPILE-TOOLCHAIN", "torch._inductor.exc.TritonMissing: Cannot find a working triton installation. Either the package is not installed"),
    ("XT-COMPILE-TOOLCHAIN", "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')"),
    ("XT-FORK-LLVM", "LLVM ERROR: pthread_join failed: Invalid argument"),
    ("XT-FORK-LLVM", "LLVM ERROR: pthread_create failed: Resource temporarily unavailable"),
    ("XT-CUDAGRAPH-SKIP", "skipping cudagraphs due to cpu device (arg12_1). Found from :"),
    ("XT-CUDAGRAPH-OVERWRITTEN", "RuntimeError: Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run."),
    ("XT-RECOMPILE", "W1121 08:00:00.123 torch/_dynamo/convert_frame.py:1358] [0/8] torch._dynamo hit config.recompile_limit (8)"),
    ("XT-RECOMPILE", "torch._dynamo hit config.cache_size_limit (64)"),
    ("XT-GRAPH-BREAK", "torch._dynamo.exc.Unsupported: Unsupported Tensor.item() call with capture_scalar_outputs=False"),
    ("XT-GRAPH-BREAK", "Graph break from `Tensor.item()`, consider setting: torch._dynamo.config.capture_scalar_outputs = True"),
    ("XT-COMPILE-MODE", "RuntimeError: Unrecognized mode=fast, should be one of: default, lite"),
    ("XT-NAN", "Non-finite values in the loss of batch 17"),
    ("XT-NAN", "WARNING skipped batch 17 (non-finite loss: nan)"),
    ("XT-NAN", "epoch 3 step 999 Loss: NaN lr 3e-4"),
    ("XT-NAN", "{'loss': nan, 'grad_norm': 1.2}"),
    ("XT-NAN", "train loss is inf"),
    ("XT-NAN", "val_loss=nan"),
    ("XT-NAN", "loss/energy = -inf"),
    ("XT-NAN", "loss = tensor(nan, device='cuda:0')"),
    ("XT-NAN-GRAD", "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped."),
    ("XT-CKPT-MISMATCH", '\tMissing key(s) in state_dict: "a.b", "c". '),
    ("XT-CKPT-MISMATCH", '\tUnexpected key(s) in state_dict: "module.a". '),
    ("XT-CKPT-MISMATCH", "\tsize mismatch for head.weight: copying a param with shape torch.Size([2, 2])"),
    ("XT-CKPT-UNSAFE", "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded"),
    ("XT-CKPT-UNSAFE", "WeightsUnpickler error: Unsupported global: GLOBAL numpy._core.multiarray.scalar was not an allowed global"),
    ("XT-CKPT-DEVICE", "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False."),
    ("XT-CKPT-CORRUPT", "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"),
    ("XT-CKPT-OPTIMIZER", "ValueError: loaded state dict has a different number of parameter groups"),
    ("XT-CKPT-OPTIMIZER", "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group"),
    ("XT-SCHEDULE-OVERRUN", "ValueError: Tried to step 2002 times. The specified number of total steps is 2001"),
    ("XT-OLD-API", "TypeError: ReduceLROnPlateau.__init__() got an unexpected keyword argument 'verbose'"),
    ("XT-ROOT-MISSING-KEY", "uproot.exceptions.KeyInFileError: not found: 'tree' (with any cycle number)"),
    ("XT-ROOT-TRUNCATED", "OSError: expected Chunk of length 4096,"),
    ("XT-ROOT-NOT-ROOT", "ValueError: not a ROOT file: first four bytes are b'<htm'"),
    ("XT-ROOT-CORRUPT", "while decompressing data in file /data/run7.root"),
    ("XT-COLLECTIVE-TIMEOUT", "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE)"),
    ("XT-COLLECTIVE-TIMEOUT", "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete"),
    ("XT-COLLECTIVE-TIMEOUT", "Timed out waiting 6000ms for send operation to complete"),
    ("XT-PEER-LOST", "RuntimeError: [pair.cc:534] Connection closed by peer [127.0.0.1]:20133"),
    ("XT-PEER-LOST", "Read error [10.0.0.2]:5123: Connection reset by peer"),
    ("XT-COLLECTIVE-MISMATCH", "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: ..."),
    ("XT-RANK-MISSING", "RuntimeError: Ranks 1, 3 failed to pass monitoredBarrier in 6000 ms"),
    ("XT-RANK-MISSING", "Rank 7 failed to pass monitoredBarrier in 300000 ms"),
    ("XT-UNUSED-PARAMETERS", "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."),
    ("XT-DDP-ATTRIBUTE", "AttributeError: 'DistributedDataParallel' object has no attribute 'encode'"),
    ("XT-DDP-PARAMETERS", "RuntimeError: [1]: params[0] in this process with sizes [3, 4] appears not to match sizes of the same param in process 0."),
    ("XT-PORT", "torch.distributed.DistNetworkError: The server socket has failed to listen (errno: 98 - Address already in use)."),
    ("XT-PORT", "OSError: EADDRINUSE: port 29500"),
    ("XT-MIOPEN", "MIOpen Error: No suitable algorithm was found to execute the required convolution"),
    ("XT-MIOPEN", "RuntimeError: miopenStatusUnknownError"),
    ("XT-CORE", "remote: error: File core is 1102.61 MB; this exceeds GitHub's file size limit of 100.00 MB"),
    ("XT-TORCHRUN-ARGS", "torchrun: error: unrecognized arguments: -c"),
    ("XT-EXPORT-BATCH", "[ONNXRuntimeError] : 1 : FAIL : The input tensor cannot be reshaped to the requested shape. Input shape:{2,4760,2}"),
    ("XT-EXPORT-INPUT", "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input: x for the following indices"),
    ("XT-EXPORT-INPUT", "INVALID_ARGUMENT : Unexpected input data type. Actual: (tensor(double)) , expected: (tensor(float))"),
    ("XT-EXPORT-INPUT", "ValueError: Required inputs (['x']) are missing from input feed (['y'])."),
    ("XT-EXPORT-OP", "torch.onnx.errors.UnsupportedOperatorError: Exporting the operator 'aten::_transformer_encoder_layer_fwd' to ONNX"),
    ("XT-ARM-EAGER", "[INFO] ARM architecture detected, torch.compile disabled"),
    ("XT-DISK-FULL", "OSError: [Errno 28] No space left on device: '/data/run/checkpoint_last.pt'"),
    ("XT-ENV-FILES", "OSError: [Errno 24] Too many open files: '/data/a.root'"),
    ("XT-DEVICE", "AssertionError: Torch not compiled with CUDA enabled"),
    ("XT-LAUNCHER", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "),
    ("XT-TIME-LIMIT", "slurmstepd: error: *** JOB 4711 ON node12 CANCELLED AT 2026-11-21T08:00:00 DUE TO TIME LIMIT ***"),
    ("XT-INTERRUPTED", "KeyboardInterrupt"),
]  # fmt: skip
HARMLESS = [
    "epoch 3 step 900 loss 0.123 lr 3e-4 grad_norm 0.7",
    "loss: information gain 0.3",
    "finance loss: infinite patience is not inf",
    "0 non-finite losses in this epoch",
    "non-finite batches: 0",
    "no non-finite values found",
    "no NaN gradients found",
    "NaN values found: 0",
    "NaN values detected = 0",
    "training stops when the loss becomes NaN",
    "terminate_on_nan: loss becomes nan -> stop",
    "the loss became smaller, informative NaN-safe losses",
    "oom-killer is set to ignore this job",
    "DataLoader uses 4 workers, timeout 600 seconds",
    "Exit code 0",
    "port 29500 is ready",
    "reading /data/memory_error_study.root",
    "MIOpen find mode 1",
    "size of the batch matches",
    "killed the stale cache entry",
    "0 errors, 0 warnings",
    "compile took 31 s, cached in /tmp/inductor",
    "val_error: 0.3 mm",
    "all keys matched successfully",
    "torch.compile mode=default",
    "connection to peer established",
    "database is open",
]


@pytest.fixture
def diagnose(tmp_path: Path) -> Diagnose:
    def run(*texts: str) -> tuple[LogCause, ...]:
        paths = [tmp_path / f"log_{index}.txt" for index in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        return rank_causes([scan_file(path) for path in paths])

    return run


@pytest.mark.parametrize(("code", "line"), SEEN, ids=lambda value: value[:40])
def test_a_line_is_told_by_its_signature(diagnose: Diagnose, code: str, line: str) -> None:
    causes = diagnose(f"step 1 loss 0.3\n{line}\nstep 2 loss 0.2\n")
    assert causes[0].code == code
    assert causes[0].where.endswith(":2")
    assert " ".join(line.split())[:60] in " ".join(causes[0].evidence)
    assert causes[0].root_cause
    assert causes[0].fix


@pytest.mark.parametrize(("code", "line"), SEEN, ids=lambda value: value[:40])
def test_the_same_inside_a_traceback_of_a_rank_with_colours(diagnose: Diagnose, code: str, line: str) -> None:
    frames = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/a/b.py", line 9, in f\n[rank3]:     g()\n'
    head = "" if line[:1] == "\t" else f"[rank3]: \x1b[31m{line}\x1b[0m\n"
    body = head or f"[rank3]: RuntimeError: Error(s) in loading state_dict for Net:\n[rank3]: {line}\n"
    causes = diagnose(f"{frames}{body}")
    assert (causes[0].code, causes[0].rank) == (code, 3)


@pytest.mark.parametrize("line", HARMLESS)
def test_a_line_that_only_resembles_one_is_left_alone(diagnose: Diagnose, line: str) -> None:
    assert diagnose(f"{line}\n" * 3) == ()


def test_every_signature_has_a_line_here_and_an_explanation() -> None:
    seen = {code for code, _ in SEEN}
    assert {signature.code for signature in SIGNATURES} == seen
    for code in seen:
        entry = library().find(code)
        assert entry is not None
        assert entry.field("Cause")
        assert entry.paste


def test_literals_are_those_of_the_pattern() -> None:
    for code, line in SEEN:
        assert code in {signature.code for signature in found_in(line)}


@pytest.mark.parametrize("last", ["EOFError", "EOFError: Ran out of input", "KeyError: 101"])
def test_what_torch_load_raises_on_damaged_files_is_told_by_its_frames(diagnose: Diagnose, last: str) -> None:
    def text(frame: str) -> str:
        return f'Traceback (most recent call last):\n  File "{frame}", line 9, in load\n    return f()\n{last}\n'

    assert diagnose(text("/x/torch/serialization.py"))[0].code == "XT-CKPT-CORRUPT"
    assert diagnose(text("/x/my/reader.py"))[0].code == "XT-UNKNOWN"


def test_source_lines_inside_a_traceback_are_no_signatures(diagnose: Diagnose) -> None:
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
        '    raise RuntimeError("CUDA out of memory. Tried to allocate")\nZeroDivisionError: division by zero\n'
    )
    assert [cause.code for cause in diagnose(text)] == ["XT-UNKNOWN"]


@pytest.mark.parametrize(
    ("message", "kind", "command"),
    [
        (
            "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.2 GiB is free. Including non-PyTorch memory, this "
            "process has 38.1 GiB memory in use. Of the allocated memory 30.1 GiB is allocated by PyTorch, and 7.51 GiB is reserved by PyTorch "
            "but unallocated.",
            "fragmentation",
            "expandable_segments",
        ),
        (
            "Tried to allocate 512.00 MiB. GPU 2 has a total capacity of 79.2 GiB of which 100.00 MiB is free. Including non-PyTorch memory, this "
            "process has 4.00 GiB memory in use. Of the allocated memory 3.5 GiB is allocated by PyTorch, and 10.00 MiB is reserved by PyTorch "
            "but unallocated.",
            "another process",
            "nvidia-smi",
        ),
        (
            "Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.2 GiB is free. Including non-PyTorch memory, this "
            "process has 38.1 GiB memory in use. Of the allocated memory 37.5 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch "
            "but unallocated.",
            "capacity",
            "--max-batch",
        ),
    ],
)  # fmt: skip
def test_out_of_memory_is_told_apart_by_its_numbers(diagnose: Diagnose, message: str, kind: str, command: str) -> None:
    cause = diagnose(f"torch.OutOfMemoryError: CUDA out of memory. {message}\n")[0]
    assert cause.code == "XT-OOM-GPU"
    assert kind in cause.problem
    assert command in cause.fix[0]


def test_a_prefix_on_all_names_is_named(diagnose: Diagnose) -> None:
    text = 'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "a". \n\tUnexpected key(s) in state_dict: "_orig_mod.a". \n'
    assert "torch.compile" in diagnose(text)[0].problem


def test_our_own_findings_in_a_log_keep_their_code(diagnose: Diagnose) -> None:
    causes = diagnose("error XT-QUARANTINE-FULL: 40 events had to be left out\n  where: x\n")
    assert causes[0].code == "XT-QUARANTINE-FULL"


def test_advice_on_the_configuration_is_no_fault_of_the_run(diagnose: Diagnose) -> None:
    assert diagnose("warning CFG-44: model.encoder_dim 32 is narrow\n  where: c.yaml:3\n") == ()
    assert diagnose("warning XT-TRACKER: the tracker does not answer\n")[0].role == "degraded"
