"""Signatures of memory, loading, compiler, numbers, data files, checkpoints and exports."""

from __future__ import annotations

from typing import Final

from xectool.diagnosis.signatures.signature import Role, Signature

LOAD_FRAME: Final = "torch/serialization.py"

MEMORY: Final = (
    Signature(
        "XT-OOM-GPU",
        r"CUDA out of memory\. Tried to allocate|torch(?:\.cuda)?\.OutOfMemoryError|HIP out of memory"
        r"|Error: CUDA out of memory"
        r"|(?:CUDA|HIP) error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|ErrorMemoryAllocation|hipErrorOutOfMemory"
        r"|(?:Cuda|HIP) failure (?:\d+ )?'out of memory'",
        ("out of memory", "OutOfMemory", "ALLOC_FAILED", "ErrorMemoryAllocation"),
    ),
    Signature(
        "XT-OOM-HOST",
        r"oom[-_]kill event|[Oo]ut of memory: Killed process|invoked oom-killer|exit(?:ed with)? code 137\b"
        r"|\bMemoryError\b",
        ("oom", "ut of memory: Killed", "137", "MemoryError"),
    ),
    Signature(
        "XT-OOM-HOST",
        r"not enough memory: you tried to allocate|[Cc]an't allocate memory"
        r"|Unable to allocate .* for an array",
        ("allocate",),
    ),
    Signature(
        "XT-OOM-HOST",
        r"OutOfMemory\b.*state|OUT_OF_ME|srun: error: .*: Out Of Memory|\bOOM ?Killed\b|TERM_MEMLIMIT"
        r"|job killed: v?mem\b",
        ("OUT_OF_ME", "Out Of Memory", "Killed", "TERM_MEMLIMIT", "job killed"),
        confidence=0.9,
    ),
    Signature(
        "XT-OOM-HOST",
        r"^(?:\S+: )?(?:line \d+: )?\s*(?:\d+ )?Killed\b(?! process)|exitcode\s*: -9\b|Signal 9 \(SIGKILL\) received",
        ("Killed", "exitcode", "Signal 9"),
        Role.CONSEQUENCE,
        0.6,
    ),
    Signature(
        "XT-OOM-HOST",
        r"DataLoader worker \(pid.*\) is killed by signal: Killed",
        ("by signal: Killed",),
        confidence=0.8,
    ),
    Signature(
        "XT-SHM",
        r"killed by signal: Bus error|out of shared memory|unable to open shared memory object",
        ("memory", "Bus error"),
    ),
    Signature(
        "XT-SHM",
        r"srun: error: .*: Bus error|exitcode\s*: -7\b|Signal 7 \(SIGBUS\) received",
        ("Bus error", "exitcode", "Signal 7"),
        Role.CONSEQUENCE,
        0.6,
    ),
    Signature(
        "XT-WORKER-SEGV",
        r"worker.*killed by signal: Segmentation fault|Unexpected segmentation fault encountered in worker",
        ("egmentation fault",),
    ),
    Signature(
        "XT-WORKER-DEAD",
        r"DataLoader worker \(pid\(?s?\)? .*\) exited unexpectedly",
        ("exited unexpectedly",),
        Role.WRAPPER,
        0.7,
    ),
)
LOADING: Final = (
    Signature("XT-LOADER-STALL", r"DataLoader timed out after \d+(?:\.\d+)? seconds", ("DataLoader timed out",)),
    Signature(
        "XT-WORKER-ERROR",
        r"Caught (\w+) in DataLoader worker process (\d+)",
        ("in DataLoader worker",),
        Role.WRAPPER,
        0.7,
    ),
    Signature(
        "XT-CFG-WORKERS",
        r"prefetch_factor option could only be specified in multiprocessing"
        r"|persistent_workers option needs num_workers > 0"
        r"|multiprocessing_context can only be used|requires timeout == 0",
        ("prefetch_factor option", "persistent_workers option", "multiprocessing_context can", "requires timeout"),
    ),
    Signature("CFG-35", r"batch_size=None option disables auto-batching", ("disables auto-batching",)),
    Signature(
        "XT-LOADER-SHUFFLE",
        r"expected unspecified (?:shuffle|sampler|batch_sampler) option|object of type '.*' has no len\(\)",
        ("expected unspecified", "has no len()"),
        confidence=0.9,
    ),
)
COMPILER: Final = (
    Signature(
        "XT-COMPILE-TOOLCHAIN",
        r"Cannot find a working triton installation|InvalidCxxCompiler|No working C\+\+ compiler",
        ("working triton", "InvalidCxxCompiler", "No working C++"),
    ),
    Signature("XT-FORK-LLVM", r"LLVM ERROR: pthread_(?:join|create) failed", ("LLVM ERROR",)),
    Signature("XT-CUDAGRAPH-SKIP", r"skipping cudagraphs due to", ("skipping cudagraphs",), Role.DEGRADED),
    Signature(
        "XT-CUDAGRAPH-OVERWRITTEN",
        r"accessing tensor output of CUDAGraphs that has been overwritten",
        ("output of CUDAGraphs",),
    ),
    Signature("XT-RECOMPILE", r"hit config\.(?:recompile_limit|cache_size_limit)", ("hit config.",), Role.DEGRADED),
    Signature(
        "XT-GRAPH-BREAK",
        r"Graph break (?:from|in)|Unsupported Tensor\.item\(\)",
        ("Graph break", "Unsupported Tensor"),
        Role.DEGRADED,
    ),
    Signature("XT-COMPILE-MODE", r"Unrecognized mode=", ("Unrecognized mode=",)),
    Signature("XT-ARM-EAGER", r"ARM architecture detected", ("ARM architecture",), Role.DEGRADED, 0.9),
)
NUMBERS: Final = (
    Signature(
        "XT-NAN-GRAD",
        r"total norm of order .* is non-finite|Function '\w+Backward\d*' returned nan values",
        ("is non-finite", "returned nan values"),
    ),
    Signature(
        "XT-AMP-OVERFLOW",
        r"[Ll]oss scale already at minimum|Minimum loss scale reached",
        ("oss scale",),
        confidence=0.85,
    ),
    Signature("XT-NAN-WEIGHTS", r"Detected nan and/or inf values in `", ("nan and/or inf values",), confidence=0.9),
    Signature(
        "XT-NAN",
        r"non-finite (?:values?|loss(?:es)?)\b"
        r"|(?<![a-z])loss(?:es)?(?:[/_]\w+|\[\w+\])?[\"']? *(?:[:=]|is|->| ) *(?:tensor\()?"
        r"[-+]?(?:nan|inf(?:inity)?)\b|loss returned in `\w+` is nan"
        r"|(?<![a-z])loss(?:es)? (?:became|has become|turned|went|diverged to) (?:infinite|inf|nan)\b"
        r"|\bnan (?:or inf\w* )?(?:loss(?:es)?|gradients?|values?) (?:was |were )?(?:detected|found|encountered)\b",
        ("non-finite", "nan", " inf", "=inf", ":inf", "-inf", "+inf", "(inf"),
        confidence=0.85,
        fold=True,
        unless=r"(?i)total norm of order|\b(?:0|no|without)(?: any)? (?:non-finite|nan)\b"
        r"|(?:non-finite|nan) \w+(?: \w+)? *[:=] *0\b",
    ),
    Signature("XT-OLD-API", r"got an unexpected keyword argument 'verbose'", ("argument 'verbose'",)),
    Signature("XT-SCHEDULE-OVERRUN", r"Tried to step \d+ times", ("Tried to step",)),
)
CHECKPOINTS: Final = (
    Signature(
        "XT-CKPT-MISMATCH",
        r"Missing key\(s\) in state_dict|Unexpected key\(s\)|size mismatch for",
        ("key(s)", "size mismatch"),
    ),
    Signature(
        "XT-CKPT-UNSAFE",
        r"Weights only load failed|Unsupported global: GLOBAL (\S+)",
        ("Weights only", "Unsupported global"),
    ),
    Signature("XT-CKPT-DEVICE", r"Attempting to deserialize object on a CUDA device", ("Attempting to deserialize",)),
    Signature(
        "XT-CKPT-CORRUPT",
        r"PytorchStreamReader failed|finding central directory|unexpected EOF, expected \d+ more bytes"
        r"|corrupted zip archive",
        ("PytorchStreamReader", "central directory", "unexpected EOF", "corrupted zip"),
    ),
    Signature(
        "XT-CKPT-CORRUPT",
        r"^(?:EOFError\b|KeyError: \d+$|(?:_pickle\.)?UnpicklingError)",
        ("Error",),
        confidence=0.85,
        unless="Weights only",
        within=LOAD_FRAME,
    ),
    Signature(
        "XT-CKPT-OPTIMIZER",
        r"different number of parameter groups|doesn't match the size of optimizer's group",
        ("parameter groups", "optimizer's group"),
    ),
)
FILES: Final = (
    Signature("XT-ROOT-MISSING-KEY", r"KeyInFileError: not found", ("KeyInFileError",)),
    Signature("XT-ROOT-TRUNCATED", r"expected Chunk of length", ("expected Chunk",)),
    Signature("XT-ROOT-NOT-ROOT", r"not a ROOT file", ("not a ROOT file",)),
    Signature("XT-ROOT-CORRUPT", r"while decompressing data", ("while decompressing",)),
    Signature("XT-DISK-FULL", r"No space left on device|Disk quota exceeded", ("No space left", "quota exceeded")),
    Signature("XT-ENV-FILES", r"Too many open files", ("Too many open files",)),
)
EXPORTS: Final = (
    Signature("XT-EXPORT-BATCH", r"cannot be reshaped to the requested shape", ("cannot be reshaped",)),
    Signature(
        "XT-EXPORT-INPUT",
        r"Got invalid dimensions for input|Unexpected input data type|Required inputs? .* (?:are|is) missing",
        ("Got invalid dimensions", "Unexpected input data", "Required input"),
    ),
    Signature(
        "XT-EXPORT-OP", r"UnsupportedOperatorError.*_transformer_encoder_layer_fwd", ("_transformer_encoder_layer_fwd",)
    ),
)
