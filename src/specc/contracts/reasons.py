"""Why speculation is on or off, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

OFF = {
    "requested": "the bundle has no drafter, or plain decoding was asked for",
    "option-unsupported": "an option was asked for that speculation cannot honour",
    "vocabulary-mismatch": "target and draft do not mean the same strings by their ids",
    "capacity": "the context has no room for a round",
    "draft-error": "the drafter broke its contract",
    "no-gain": "no K pays on this device, so plain decoding is at least as fast",
}


def explain_speculation(
    enabled: bool, reasons: Sequence[str], certificate: Mapping[str, Any], lint: Mapping[str, Any], place: str
) -> str:
    """The sentence. `certificate` as in the JSON of `specc inspect`, `lint` as in the manifest, `place`: the
    bundle.
    """
    if enabled:
        return f"on: {describe_certificate(certificate)}, at most {certificate['k'] or 'K'} tokens a round"
    return "off: " + "; ".join(explain_reason(reason, certificate, lint, place) for reason in reasons)


def describe_certificate(certificate: Mapping[str, Any]) -> str:
    """What was certified."""
    device, law = certificate["device"], certificate["law_width"]
    if certificate["kind"] == "bounded":
        return f"approximate, mean TV <= {certificate['tv_bound']:.3g} on {device}"
    classes = [group for group in certificate["widths"] if law in group] or [[law]]
    return f"rows are bit-identical at widths {', '.join(map(str, classes[0]))} on {device}"


def explain_reason(reason: str, certificate: Mapping[str, Any], lint: Mapping[str, Any], place: str) -> str:
    """One reason code and what it means here."""
    if reason == "uncertified-device":
        here = f"{certificate['device']} with {certificate['threads']} threads"
        seen = f"; {certificate['evidence']}" if certificate.get("evidence") else ""
        return f"uncertified-device (no certificate for {here}; run `specc gate {place}`{seen})"
    if reason == "lint":
        findings = lint["findings"]
        first = f", the first is {findings[0]['node']}: {findings[0]['why']}" if findings else ""
        return f"lint ({len(findings)} findings in the target's graph{first})"
    if reason == "numerics":
        if certificate.get("evidence"):
            return f"numerics ({certificate['evidence']})"
        largest = max(certificate["max_abs_diff"].values(), default=0.0)
        rows = f"rows of one position differ by up to {largest:.3g} in the logits"
        return f"numerics (a judge found another law; {rows})"
    return f"{reason} ({OFF.get(reason, 'see `specc gate`')})"
