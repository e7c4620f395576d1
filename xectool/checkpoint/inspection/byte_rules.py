"""Rules on the bytes of a checkpoint: whole, as written, and without code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from xectool.checkpoint.inspection.facts import Inspected
from xectool.checkpoint.inspection.layout import XECTOOL
from xectool.checkpoint.inspection.trust import Trust
from xectool.checkpoint.names import EXPORT_AGAIN, USE_ANOTHER
from xectool.errors import in_shell
from xectool.findings import Finding
from xectool.rules import Rule

_SHOWN: Final = 8


class BytesAreAsWritten(Rule[Inspected]):
    """Checksums, sizes and places in the file agree with one another."""

    code = "K02"
    title = "Every byte is where it was written, as far as checksums tell"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error for each damaged place; the first ones where there are many."""
        for problem in facts.contents.problems:
            yield replace(self.error(problem.where, problem.what, _again(facts)), code=problem.check)


class DigestHolds(Rule[Inspected]):
    """Our digest over all content, and a ``.sha256`` file beside the checkpoint."""

    code = "K02"
    title = "The content is what the digests say"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error for each digest that does not hold, a note where nothing protects the bytes."""
        contents, name = facts.contents, in_shell(facts.contents.path)
        for place in facts.changed[:_SHOWN]:
            problem = f"{place} is not what was saved: its checksum differs"
            yield self.error(_bytes_of(facts, place), problem, _again(facts))
        if len(facts.changed) > _SHOWN:
            yield self.error("content", f"{len(facts.changed) - _SHOWN} more parts are not what was saved", USE_ANOTHER)
        if facts.digest_holds is False:
            sealed = contents.checksums and not contents.problems
            cause = "; every CRC is right, so it was changed before the file was written" if sealed else ""
            problem = f"the content does not match the digest stored with it (SHA-256){cause}"
            yield self.error("digest", problem, _again(facts))
        if facts.sidecar == "":
            problem = "the .sha256 file beside it holds no SHA-256 of it, so nothing could be compared with that"
            again = f"sha256sum {name} > {name}.sha256   # where the file is known to be whole"
            yield self.warning(f"{contents.path.name}.sha256", problem, again)
        if facts.sidecar and facts.sidecar != contents.sha256:
            problem = f"the file's SHA-256 is {contents.sha256[:16]}…, the .sha256 file beside it says "
            yield self.error(f"{contents.path.name}.sha256", f"{problem}{facts.sidecar[:16]}…", USE_ANOTHER)
        if not (contents.checksums or facts.sidecar or facts.digest_holds is not None):
            yield self.info(
                contents.format,
                "nothing in the file protects its bytes: a flipped bit shows only where it makes a value absurd",
                f"sha256sum {name} > {name}.sha256",
            )


class RunsNoCode(Rule[Inspected]):
    """A pickle asks for nothing but tensors and plain types."""

    code = "K03"
    title = "Loading the file runs no code"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error for names that run code when loaded, a warning for plain values of other libraries."""
        found = facts.contents.unsafe
        for trust, problem in (
            (Trust.CODE, "the file runs commands when it is unpickled; it was not"),
            (Trust.CLASS, "the file needs classes of other code, which would run when it is unpickled; it was not"),
        ):
            names = [item for item in found if item.trust == trust.value]
            if names:
                shown = ", ".join(item.name for item in names[:5]) + (" …" if len(names) > 5 else "")
                finding = self.error(names[0].place, f"{problem}: {shown}", self._fix(trust))
                yield replace(finding, evidence=tuple(f"{item.name} at {item.place}" for item in names[:20]))
        inert = [item for item in found if item.trust == Trust.INERT.value]
        if inert:
            shown = ", ".join(item.name for item in inert[:5])
            finding = self.warning(
                inert[0].place,
                f"it holds values of other libraries ({shown}), which torch refuses with weights_only=True",
                self._without(facts),
            )
            yield replace(finding, evidence=tuple(f"{item.name} at {item.place}" for item in inert[:20]))

    @staticmethod
    def _without(facts: Inspected) -> str:
        if not facts.layout.is_ours:
            return "ask its author for a state_dict: torch.save(model.state_dict(), 'weights.pt')"
        name = in_shell(facts.contents.path)
        return f"xectool inspect-ckpt {name} --extract encoder --output e.pt   # takes the weights out without them"

    @staticmethod
    def _fix(trust: Trust) -> str:
        if trust is Trust.CODE:
            return "do not load it with weights_only=False; delete it, or ask its author where it comes from"
        return "ask its author for a state_dict: torch.save(model.state_dict(), 'weights.pt')"


class VersionIsKnown(Rule[Inspected]):
    """The layout is one this program understands."""

    code = "K15"
    title = "The checkpoint is of a known version"

    def check(self, facts: Inspected) -> Iterator[Finding]:
        """Yield an error for a version of ours that is newer, or facts that cannot be read."""
        from xectool.checkpoint.format import FORMAT_VERSION

        layout, payload = facts.layout, facts.contents.payload
        if layout.origin != XECTOOL or facts.contents.format == "safetensors":
            return
        version = payload.get("version")
        if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
            problem = f"format version {version} is not one this xectool understands ({FORMAT_VERSION})"
            yield self.error("version", problem, "pip install --upgrade xectool")
        missing = [name for name in ("meta", "model", "ema", "training", "digest") if name not in payload]
        if missing:
            yield self.error(", ".join(missing), f"sections are missing: {', '.join(missing)}", USE_ANOTHER)
        elif not layout.meta:
            yield self.error("meta", "its facts (kind, configuration, progress) cannot be read", USE_ANOTHER)


def _bytes_of(facts: Inspected, place: str) -> str:
    ref = facts.contents.tensors.get(place.removeprefix("model.") if _is_flat(facts) else place)
    return ref.storage.where if ref is not None and ref.storage is not None and ref.storage.where else place


def _is_flat(facts: Inspected) -> bool:
    """Return whether the file's names have no section in front, as in safetensors."""
    return facts.contents.format == "safetensors"


def _again(facts: Inspected) -> str:
    return EXPORT_AGAIN if facts.contents.format in ("onnx", "torchscript", "torch-export") else USE_ANOTHER


BYTE_RULES: tuple[Rule[Inspected], ...] = (BytesAreAsWritten(), DigestHolds(), RunsNoCode(), VersionIsKnown())
