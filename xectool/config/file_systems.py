"""What kind of file system a directory lies on: shared between machines, in memory, or a disk of this one."""

from __future__ import annotations

from typing import Final

# Kept over a network or by a program outside of the kernel: locks are slow, or do not hold between nodes.
_NETWORK_PREFIXES: Final = (
    "nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "afs", "9p", "virtiofs", "glusterfs", "orangefs", "panfs",
    "wekafs", "dvs", "fhgfs", "fuse",
)  # fmt: skip
_LOCAL_FUSE: Final = ("fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.overlayfs", "fusectl")
_ROOTS: Final = ("9p", "virtiofs")  # of sandboxes and small virtual machines, whose disk they are
_IN_MEMORY: Final = ("tmpfs", "ramfs", "devtmpfs")


def is_network(file_system: str) -> bool:
    """Return whether files of this type of file system are shared between machines or served by a program.

    >>> is_network("nfs4"), is_network("fuse.sshfs"), is_network("ext4"), is_network("fuseblk")
    (True, True, False, False)
    """
    return file_system.startswith(_NETWORK_PREFIXES) and file_system not in _LOCAL_FUSE


def is_local_disk(file_system: str) -> bool:
    """Return whether files of this type of file system lie on a disk of this machine.

    >>> is_local_disk("xfs"), is_local_disk("9p"), is_local_disk("tmpfs"), is_local_disk("nfs4")
    (True, True, False, False)
    """
    return file_system in _ROOTS or not (is_network(file_system) or is_in_memory(file_system))


def is_in_memory(file_system: str) -> bool:
    """Return whether files of this type of file system take memory, and are gone with the machine.

    >>> is_in_memory("tmpfs"), is_in_memory("xfs")
    (True, False)
    """
    return file_system in _IN_MEMORY
