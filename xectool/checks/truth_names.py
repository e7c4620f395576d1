"""What the name of a branch says of it: truth, what a program made of readings, and of which quantity."""

from __future__ import annotations

import re
from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TRUTH: Final = frozenset(("truth", "true", "tru", "mc", "gen", "sim"))
MADE: Final = _words(
    "rec reco recon reconstr reconstructed reconstruction fit fitted est estim estimate estimated estimator "
    "pred predict predicted prediction meas measured smear smeared"
)
"""Names of what was made of the readings: trained on, a network learns what another program said."""
_TASKS: Final = {
    "energy": _words("e en ene energy egamma"),
    "timing": _words("t time timing"),
    "uvwFI": _words("uvw uvwfi pos position vertex vtx conv conversion point"),
    "angle": _words("angle angles ang dir direction"),
    "angleVec": _words("vec vector dir direction"),
    "n_gamma": _words("ngamma gamma gammas multiplicity"),
}
_OTHERS: Final = _words(
    "d dt de dx delta diff res resid residual err error sigma unc cov chi ndf prob score weight wgt wt w id idx index "
    "flag status type pdg charge npho nphe photons light sum qsum run event evt trig trigger rate temp bias "
    "xyz mom momentum pol"
)
_ALL: Final = _OTHERS.union(*_TASKS.values(), ("u", "v", "x", "y", "z", "theta", "phi"))
_UNITS: Final = re.compile(r"[MGkKT]?eV(?![a-z])|(?<![a-z])(?:ns|ps|us|cm|mm)(?![a-z])")
_LETTERS: Final = 2
_PIECE: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ENERGY_UNIT: Final = re.compile(r"[MGkKT]eV(?![a-z])")


def pieces(name: str) -> frozenset[str]:
    """Return the words of a name in small letters, without units.

    >>> sorted(pieces("mc_recoEnergy2")), sorted(pieces("Erec")), sorted(pieces("E_MeV")), sorted(pieces("emctime"))
    (['energy', 'mc', 'reco'], ['e', 'rec'], ['e'], ['emctime'])
    """
    words = (word.lower() for word in _PIECE.findall(_UNITS.sub("_", name)))
    return frozenset(part for word in words for part in _parted(word))


def is_made(name: str) -> bool:
    """Return whether a name says that a program made it of the readings, and no simulation knew it.

    >>> [is_made(name) for name in ("E_rec", "uvwReco", "t0_fit", "eEst", "recoil_energyTruth", "e_true", "record")]
    [True, True, True, True, False, False, False]
    """
    return bool(pieces(name) & MADE)


def says_truth(name: str) -> bool:
    """Return whether a name says that it is the truth."""
    return bool(pieces(name) & TRUTH)


def says_task(name: str, task: str) -> bool:
    """Return whether a name says that it is of the quantity of a task, and of no other.

    >>> says_task("e_true", "energy"), says_task("dE_true", "energy"), says_task("simvar_MeV", "energy")
    (True, False, True)
    """
    words = pieces(name)
    named = words & _TASKS[task] or (task == "energy" and _ENERGY_UNIT.search(name))
    return bool(named) and not words & _OTHERS


def is_letter(name: str, task: str) -> bool:
    """Return whether a name says the quantity by a letter or two alone, and not that it is the truth.

    >>> [is_letter(name, "energy") for name in ("e_noise", "E", "E_gamma", "e_mc", "E_MeV", "energy_old")]
    [True, True, True, False, False, False]
    """
    words = pieces(name)
    is_short = all(len(word) <= _LETTERS for word in words & _TASKS[task])
    return is_short and not words & TRUTH and not (task == "energy" and _ENERGY_UNIT.search(name))


def says_more(name: str) -> bool:
    """Return whether a name has a word that may say anything.

    >>> says_more("t_start"), says_more("E_gamma")
    (True, False)
    """
    return bool(pieces(name) - _ALL - TRUTH)


def says_another(name: str, task: str) -> bool:
    """Return whether a name says that it is something else than the quantity of a task.

    >>> says_another("dt", "timing"), says_another("dt", "energy"), says_another("where", "uvwFI")
    (True, True, False)
    """
    words = pieces(name)
    others = frozenset[str]().union(*_TASKS.values()) - _TASKS[task]
    return bool(words & _OTHERS) or (bool(words & others) and not says_task(name, task))


def _parted(word: str) -> list[str]:
    """Return a word in two where it is written together: erec, mcenergy."""
    for mark in (*MADE, *TRUTH):
        for rest, other in ((word.removeprefix(mark), mark), (word.removesuffix(mark), mark)):
            if rest != word and rest in _ALL:
                return [rest, other]
    return [word]
