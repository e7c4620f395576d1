"""Signatures of distributed runs, trackers, machines and batch systems; and all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from xectool.diagnosis.signatures import known
from xectool.diagnosis.signatures.signature import Role, Signature

TRACKER: Final = (
    Signature("XT-DB-LOCKED", r"database is locked", ("database is locked",), Role.DEGRADED, unless=r"(?i)miopen"),
    Signature(
        "XT-MIOPEN-LOCKED", r"(?i)miopen.*database is locked|database is locked.*miopen", ("database is locked",)
    ),
    Signature("XT-TRACKER-PARAMS", r"Changing param values is not allowed", ("Changing param values",)),
)
RANKS: Final = (
    Signature(
        "XT-COLLECTIVE-TIMEOUT",
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send) operation"
        r"|watchdog got stuck for \d+ seconds|watchdog thread terminated with exception",
        ("collective operation timeout", "Timed out waiting", "watchdog got stuck", "watchdog thread terminated"),
        Role.CONSEQUENCE,
        0.8,
    ),
    Signature(
        "XT-RANK-MISSING",
        r"Ranks? \d[\d, ]* failed to pass monitoredBarrier|Timed out after \d+ seconds waiting for clients"
        r"|RendezvousTimeoutError",
        ("monitoredBarrier", "waiting for clients", "RendezvousTimeoutError"),
        Role.CONSEQUENCE,
        0.85,
    ),
    Signature(
        "XT-PEER-LOST",
        r"Connection (?:closed|reset) by peer|reached monitoredBarrier, but received errors",
        ("by peer", "reached monitoredBarrier"),
        Role.VICTIM,
        0.6,
    ),
    Signature(
        "XT-PEER-LOST",
        r"Broken pipe.*(?:TCPStore|store)|TCPStore.*[Bb]roken pipe|recvValue failed|failed to recv, got 0 bytes"
        r"|remote process exited or there was a network error|ncclRemoteError",
        ("roken pipe", "recvValue failed", "got 0 bytes", "remote process exited", "ncclRemoteError"),
        Role.VICTIM,
        0.6,
    ),
    Signature(
        "XT-LAUNCHER",
        r"ChildFailedError|Sending process \d+ closing signal|failed \(exitcode: -?\d+\)"
        r"|srun: error: .*(?:Exited with exit code|Terminated)",
        ("ChildFailedError", "closing signal", "(exitcode:", "srun: error"),
        Role.WRAPPER,
        0.5,
    ),
    Signature(
        "XT-COLLECTIVE-MISMATCH", r"Detected mismatch between collectives on ranks", ("Detected mismatch between",)
    ),
    Signature(
        "XT-UNUSED-PARAMETERS",
        r"Expected to have finished reduction in the prior iteration",
        ("Expected to have finished",),
    ),
    Signature(
        "XT-DDP-ATTRIBUTE", r"'DistributedDataParallel' object has no attribute", ("'DistributedDataParallel' object",)
    ),
    Signature("XT-DDP-PARAMETERS", r"appears not to match sizes of the same param", ("appears not to match",)),
    Signature("XT-PORT", r"EADDRINUSE|address already in use", ("eaddrinuse", "already in use"), fold=True),
    Signature("XT-TORCHRUN-ARGS", r"unrecognized arguments: -c\b", ("unrecognized arguments",)),
)
MACHINE: Final = (
    Signature(
        "XT-MIOPEN",
        r"MIOpen Error: No suitable algorithm|miopenStatusUnknownError",
        ("No suitable algorithm", "miopenStatus"),
    ),
    Signature("XT-CORE", r"exceeds GitHub's file size limit", ("file size limit",)),
    Signature(
        "XT-DEVICE",
        r"Torch not compiled with CUDA enabled|No CUDA GPUs are available|NVIDIA driver .*(?:too old|insufficient)"
        r"|(?:CUDA|HIP) error: (?:no kernel image|invalid device function|device-side assert|an illegal memory access"
        r"|uncorrectable ECC|unspecified launch failure|misaligned address|an illegal instruction"
        r"|the launch timed out|all CUDA-capable devices are busy)"
        r"|no ROCm-capable device|Memory access fault by GPU node|\bXid\b.*: \d+",
        ("CUDA", "HIP error", "ROCm-capable", "by GPU node", "NVIDIA driver", "Xid"),
        confidence=0.85,
    ),
    Signature(
        "XT-DEVICE",
        r"(?:NCCL|RCCL) [Ee]rror\b.*unhandled (?:cuda|hip) error",
        ("unhandled cuda error", "unhandled hip error"),
        Role.WRAPPER,
        0.5,
    ),
    Signature(
        "XT-TIME-LIMIT",
        r"CANCELLED AT .* DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)|TERM_RUNLIMIT|job killed: walltime",
        ("CANCELLED AT", "TERM_RUNLIMIT", "job killed"),
    ),
    Signature(
        "XT-INTERRUPTED",
        r"^KeyboardInterrupt\b|CANCELLED AT (?!.*DUE TO)",
        ("KeyboardInterrupt", "CANCELLED"),
        Role.VICTIM,
        0.6,
    ),
)

SIGNATURES: Final = (
    *known.MEMORY, *known.LOADING, *known.COMPILER, *known.NUMBERS, *known.CHECKPOINTS, *known.FILES, *known.EXPORTS,
    *TRACKER, *RANKS, *MACHINE,
)  # fmt: skip


def possible_in(lines: Sequence[str]) -> tuple[Signature, ...]:
    """Return the signatures that some of the lines may carry: a quick look that spares most lines the slow one."""
    text = "\n".join(lines)
    folded = text.lower()
    return tuple(item for item in SIGNATURES if any(word in (folded if item.fold else text) for word in item.literals))


def found_in(
    line: str, frames: frozenset[str] = frozenset(), among: Sequence[Signature] = SIGNATURES
) -> tuple[Signature, ...]:
    """Return the signatures a line carries, in the order of the tables, one a code.

    Args:
        line: The line, without colours, rank and trailing space.
        frames: Texts of interest in the frames of the traceback that the line ends.
        among: The signatures that come into question.
    """
    if not among:
        return ()
    folded = line.lower()
    found: dict[str, Signature] = {}
    for signature in among:
        if signature.code not in found and signature.matches(line, folded, frames):
            found[signature.code] = signature
    return tuple(found.values())
