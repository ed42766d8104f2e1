"""The model card and the provenance of a trained draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from specc.calib.prompts import HELD_OUT_SHA256
from specc.contracts.files import File
from specc.contracts.model_spec import ModelSpec
from specc.version import __version__


def make_provenance(
    kind: str,
    spec: ModelSpec,
    origin: Mapping[str, Any],
    facts: Mapping[str, Any],
    files: Sequence[File],
    accepted: Mapping[str, Sequence[float]],
) -> dict[str, Any]:
    """What decided the files, and their hashes; no times and no paths, so equal runs give equal bytes."""
    return {
        "specc": __version__,
        "kind": kind,
        "target": {
            "weights_sha256": spec.weights_sha256,
            "source": origin.get("source"),
            "licence": spec.licence,
        },
        "held_out_prompts_sha256": HELD_OUT_SHA256,
        "files": [asdict(file) for file in files],
        "accepted_on_tuning_prompts": {name: list(values) for name, values in accepted.items()},
        **facts,
    }


CARD = """# Draft for {source}

Made by `specc distill`: {what}. It only proposes; what is emitted is the target's own, token by token.

- Target: {source}, weights SHA-256 `{weights}`, licence {licence}. A build for other weights \
refuses these files.
- Data: {samples} prompts with {tokens} answer tokens, all written by the target itself (half greedy, half at
  temperature 0.8). {prompts} Samples that share a run of 8 tokens with a held-out prompt or its answers were
  dropped ({dropped}).
- Seed {seed}; data SHA-256 `{data}`.
- Licence of these files: that of the target, since they were made from its weights and answers.
{table}{accepted}
`provenance.json` has the hashes and every setting.
"""
BUILT_IN_PROMPTS = (
    "Prompts come from templates of ours, from requests that the target wrote, and from the source and "
    "documentation of the Python standard library (PSF licence; prompts only)."
)
TABLE_NOTE = """- The n-gram table holds runs of 2 to 6 tokens \
that were seen {min_count} times or more in these data, so it
  can reveal text of the prompts where own ones were given. `--no-table` leaves it out, `--min-count` asks for
  more repetitions.
"""


def make_card(provenance: Mapping[str, Any]) -> str:
    """The text of README.md in a draft's folder."""
    data, target, table = provenance["data"], provenance["target"], provenance.get("table")
    names = [file["path"] for file in provenance["files"]]
    return CARD.format(
        source=target["source"],
        what=" and ".join(f"`{name}`" for name in names),
        weights=target["weights_sha256"],
        licence=target["licence"] or "unknown",
        samples=data["samples"],
        tokens=data["answer_tokens"],
        prompts=BUILT_IN_PROMPTS
        if not data["own_prompts"]
        else f"Prompts: {data['own_prompts']} of the user's own.",
        dropped=data["dropped_for_held_out"],
        seed=data["seed"],
        data=data["sha256"],
        table=TABLE_NOTE.format(**table) if table else "",
        accepted=format_acceptance(provenance["accepted_on_tuning_prompts"]),
    )


def format_acceptance(accepted: Mapping[str, Sequence[float]]) -> str:
    """Acceptance by class and depth as Markdown; empty where it was not measured."""
    if not accepted:
        return ""
    depth = max(map(len, accepted.values()))
    titles = "| class | " + " | ".join(f"depth {i + 1}" for i in range(depth)) + " |\n"
    ruler = "|---" * (depth + 1) + "|\n"
    cells = [[name, *(f"{v:.2f}" for v in values)] for name, values in accepted.items()]
    rows = "".join("| " + " | ".join(row) + " |\n" for row in cells)
    caption = "Greedy acceptance on the tuning prompts, a depth given that all before it were right:"
    return f"\n{caption}\n\n{titles}{ruler}{rows}"
