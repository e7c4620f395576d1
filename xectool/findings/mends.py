"""What becomes of the values of a branch that is in another unit or holds numbers in place of values that are none."""

from __future__ import annotations

from typing import NamedTuple


class Marker(NamedTuple):
    """A number that stands for no value.

    Attributes:
        value: The number, as it is stored.
        component: Of which component; None for all of them.
    """

    value: float
    component: int | None = None


class Change(NamedTuple):
    """What becomes of the values of a branch, in this order; what is not known is 1e10 then.

    Attributes:
        markers: Numbers that stand for values which are not known, as they are stored.
        factor: What known values are multiplied with.
        within: Lowest and highest of each component, or of all of them; what lies beyond is not known.
        is_finite: Whether NaN, infinity and what is larger than 1e10 are not known either.
    """

    markers: tuple[Marker, ...] = ()
    factor: float = 1.0
    within: tuple[tuple[float, float], ...] = ()
    is_finite: bool = False

    def joined(self, other: Change) -> Change:
        """Return both changes of one branch as one; of two factors or ranges the first.

        >>> Change(factor=1e-3).joined(Change((Marker(-999.0),), is_finite=True))
        Change(markers=(Marker(value=-999.0, component=None),), factor=0.001, within=(), is_finite=True)
        >>> one, other = Change((Marker(2.0),)), Change((Marker(-999.0),))
        >>> one.joined(other) == other.joined(one)
        True
        """
        found = {*self.markers, *other.markers}  # in one order, so that files which need the same share a line
        markers = tuple(sorted(found, key=lambda of: (of.value, -1 if of.component is None else of.component)))
        factor = self.factor if self.factor != 1.0 else other.factor
        return Change(markers, factor, self.within or other.within, self.is_finite or other.is_finite)


class Mend(NamedTuple):
    """A branch of a file, and what becomes of its values.

    Attributes:
        path: The file.
        tree: Its tree.
        branch: The branch.
        change: What is done.
    """

    path: str
    tree: str
    branch: str
    change: Change
