"""The committed draft of the main recipe is the one that its provenance describes, and holds nothing held
out.
"""

import json
from pathlib import Path

from specc import recipes
from specc.calib import ngram_table, prompts
from specc.contracts.files import hash_file

FOLDER = Path(recipes.__file__).parent / "smollm2-135m-draft"
MOST = 20_000_000


def test_files_are_those_of_the_provenance() -> None:
    provenance = json.loads((FOLDER / "provenance.json").read_text(encoding="utf-8"))
    known = {file["path"]: (file["bytes"], file["sha256"]) for file in provenance["files"]}
    found = {path.name: path for path in FOLDER.iterdir() if path.suffix in (".bin", ".safetensors")}
    assert known == {name: (path.stat().st_size, hash_file(path)) for name, path in found.items()}
    assert sum(size for size, _ in known.values()) <= MOST
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert provenance["data"]["sha256"] in card and provenance["target"]["weights_sha256"] in card
    assert all(name in card for name in known)


def test_training_saw_the_frozen_held_out_prompts_and_dropped_what_they_share() -> None:
    provenance = json.loads((FOLDER / "provenance.json").read_text(encoding="utf-8"))
    assert provenance["held_out_prompts_sha256"] == prompts.HELD_OUT_SHA256
    assert provenance["data"]["dropped_for_held_out"] > 0


def test_the_table_cannot_hold_a_run_of_eight_ids() -> None:
    n_ids, orders = ngram_table.read_table(FOLDER / "draft_table.bin")
    assert max(orders) + 1 < 8 and n_ids == 49152
    assert all(
        (slots["next"] < n_ids).all() and (slots["count"] <= slots["total"]).all()
        for slots in orders.values()
    )
    assert all((slots["count"][slots["tag"] > 0] >= 2).all() for slots in orders.values())
