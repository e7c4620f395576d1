"""Whether ranks can find each other at all: variables, interfaces, port, master, backend. Nothing is started."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from typing import Final

import psutil
import torch
import torch.distributed as dist

from xectool.errors import UsageError, counted, duration
from xectool.findings import Finding, Severity
from xectool.training.ranks.environment import started_by_launcher

INTERFACES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
CONNECT_S: Final = 5.0


def environment_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what is wrong with the variables that torchrun sets and that name interfaces."""
    try:
        started_by_launcher()
    except UsageError as error:
        yield Finding(error.code, Severity.ERROR, error.problem, "environment", fix=error.fix)
    here = [name for _, name in socket.if_nameindex()]
    for variable in INTERFACES:
        for wanted in environment.get(variable, "").split(","):
            exact = wanted.removeprefix("=")
            known = any(name == exact or (exact == wanted and name.startswith(exact)) for name in here)
            if exact and not wanted.startswith("^") and not known:
                problem = f"{variable}: interface {exact} not found; available: {', '.join(here)}"
                yield Finding("XT-ENV-INTERFACE", Severity.ERROR, problem, "environment", fix=f"unset {variable}")


def backend_findings(backend: str, nproc: int) -> Iterator[Finding]:
    """Yield why a backend cannot be used here by so many ranks."""
    if backend != "nccl":
        return
    gpus = torch.cuda.device_count()
    if not dist.is_nccl_available() or not gpus:
        lacks = "this build of PyTorch has no NCCL" if gpus else "no GPU is visible, and NCCL needs one a rank"
        problem = f"backend nccl cannot be used: {lacks}"
        fix = "xectool diagnose distributed --backend gloo"
        yield Finding("XT-NCCL-MISSING", Severity.ERROR, problem, f"PyTorch {torch.__version__}", fix=fix)
    elif nproc > gpus:
        problem = f"{counted(nproc, 'rank')} but {gpus} visible GPUs: NCCL takes one rank a GPU"
        fix = f"xectool diagnose distributed --nproc {gpus}"
        yield Finding("CFG-49", Severity.ERROR, problem, "--nproc", fix=fix)


def port_findings(port: int) -> Iterator[Finding]:
    """Yield who holds a port that ranks are to meet at; 0 is any free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            problem = f"port {port} cannot be used: {error.strerror}{_holder(port)}"
            fix = "xectool diagnose distributed --port 0   # any free one; for torchrun: --rdzv-endpoint localhost:0"
            yield Finding("XT-PORT", Severity.ERROR, problem, f"port {port}", fix=fix)


def master_findings(host: str, port: int) -> Iterator[Finding]:
    """Yield why ranks on this machine cannot reach the first one on another machine."""
    where = f"MASTER_ADDR={host} MASTER_PORT={port}"
    try:
        address = socket.getaddrinfo(host, port or None, type=socket.SOCK_STREAM)[0][4][0]
    except socket.gaierror as error:
        problem = f"master {host} cannot be resolved: {error.strerror}"
        fix = f"getent hosts {host}   # or the address itself: --master 10.0.0.1"
        yield Finding("XT-RANK-MASTER", Severity.ERROR, problem, where, fix=fix)
        return
    if is_local(str(address)):
        return
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError as error:
        reason = error.strerror or f"no answer in {duration(CONNECT_S)}"
        problem = f"master {host} ({address}) does not answer at port {port}: {reason}"
        fix = f"nc -vz {host} {port}   # rank 0 must listen already; a firewall must let it through"
        yield Finding("XT-RANK-MASTER", Severity.ERROR, problem, where, fix=fix)


def is_local(address: str) -> bool:
    """Return whether an address is one of this machine."""
    own = {item.address.split("%")[0] for items in psutil.net_if_addrs().values() for item in items}
    return address in own or address.startswith("127.") or address == "::1"


def free_port() -> int:
    """Return a port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def given_port() -> int:
    """Return ``MASTER_PORT``, or 0 where there is none."""
    text = os.environ.get("MASTER_PORT", "")
    return int(text) if text.isdigit() else 0


def _holder(port: int) -> str:
    """Return which process listens at a port, as far as this user may see it."""
    try:
        found = [item.pid for item in psutil.net_connections("tcp") if item.laddr and item.laddr.port == port]
    except psutil.AccessDenied:
        return ""
    pid = next((pid for pid in found if pid), None)
    if pid is None:
        return ""
    try:
        return f"; pid {pid} has it ({' '.join(psutil.Process(pid).cmdline())[:100]})"
    except psutil.Error:
        return f"; pid {pid} has it"
